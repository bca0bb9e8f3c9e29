"""From a name to the card that is simulated."""

from __future__ import annotations

import re
from dataclasses import replace

from rung.core.errors import UsageError
from rung.core.text import parse_size
from rung.core.types import Capability, Device, Level, Proof
from rung.hardware import catalog

#: Ids as plans have them; one card of a kind is simulated.
_IDS = {"cuda": "cuda:0", "rocm": "rocm:0", "xpu": "xpu:0", "mps": "mps"}
_BUILD = re.compile(r"torch[ =]*(\d+\.\d+(?:\.\d+)?)(?:\+(?:cu(\d+)(\d)|rocm(\d+\.\d+)|xpu|cpu))?", re.IGNORECASE)


def describe(name: str | Device, memory: str | int | None = None, software: str | None = None) -> Device:
    """The device as a simulation has it: its id is that of the first of its kind, its memory what is free there.

    Raises ``UnknownDevice``, and ``UsageError`` for a processor, a size or a build that is none.
    """
    found = name if isinstance(name, Device) else catalog.simulated(name.removeprefix("sim:"))
    if found.kind not in _IDS:
        raise UsageError(
            f"{found.name} is a processor; only GPUs are simulated.",
            ["torch computes on the processor that is here"],
            ["rung devices"],
        )
    if software is not None:
        found = _with_build(found, software)
    if memory is not None:
        found = replace(found, free=_bytes(memory))
    return replace(found, id=_IDS[found.kind], real=False)


def _with_build(device: Device, text: str) -> Device:
    """The device with the torch of that name; one built for CUDA below 11 multiplies no bfloat16."""
    build = _BUILD.fullmatch(text.strip())
    if build is None:
        raise UsageError(
            f"software={text!r} names no build of torch.",
            ["written as the version of torch and what it is built for"],
            ['software="torch 1.10+cu102"', 'software="torch 2.4+rocm6.1"'],
        )
    version, major, minor, rocm = build.groups()
    found = replace(device, software=device.software | {"torch": version} | ({"rocm": rocm} if rocm else {}))
    if major is None:
        return found
    found = replace(found, software=found.software | {"cuda": f"{major}.{minor}"})
    if int(major) >= 11:
        return found
    source = f"torch built for CUDA {major}.{minor} multiplies no bfloat16: that came with CUDA 11"
    return found.with_capabilities(
        Capability(f"{op}.bf16", Level.ABSENT, Proof.TABLE, source) for op in ("matmul", "attention")
    )


def _bytes(memory: str | int) -> int:
    try:
        size = parse_size(str(memory))
    except ValueError as error:
        raise UsageError(f"memory={memory!r}: {error}", (), ['rung.simulate("p2200", memory="4GB")']) from error
    if size <= 0:
        raise UsageError(f"memory={memory!r}: a card has more than no memory.", (), ['memory="4GB"'])
    return size
