"""Name the kind of processor, and refuse interpreters and systems that rung cannot compute with, in a sentence."""

from __future__ import annotations

import sys

_BITS_64 = 2**32


def arch(machine: str = "") -> str:
    """Return the kind of processor, x86_64, aarch64 or another name; of this machine without a name.

    >>> arch("AMD64"), arch("arm64")
    ('x86_64', 'aarch64')
    """
    import platform

    name = (machine or platform.machine()).lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name or "unknown")


def require_supported(byteorder: str = sys.byteorder, largest: int = sys.maxsize) -> None:
    """Raise ``RungError`` on a big-endian or 32-bit Python: kernels and files are little-endian, of 64 bits."""
    if byteorder == "little" and largest > _BITS_64:
        return
    import platform

    from rung.core.errors import RungError

    what, way = "32-bit", "a 64-bit Python: most 32-bit systems run on processors that have 64 bits"
    if byteorder != "little":
        what, way = "big-endian", "another machine: x86-64 or 64-bit Arm"
    raise RungError(
        f"rung does not run on a {what} Python.",
        [f"this one is {platform.python_implementation()} {platform.python_version()} for {platform.machine()}"],
        [way],
        code="interpreter-unsupported",
    )


def without_wheels(abi: str | None = None) -> str:
    """Return why numba and torch cannot be installed for this Python, or an empty string. ``abi``: its own.

    >>> without_wheels("cpython-312-aarch64-linux-gnu")
    ''
    """
    if abi is None:
        from sysconfig import get_config_var

        abi = str(get_config_var("SOABI") or "")
    if not abi.endswith("-musl"):
        return ""
    return "this Python is built for musl (Alpine Linux), for which numba and torch have no wheels"
