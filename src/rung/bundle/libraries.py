"""The libraries of the system that compiled files need, and their licenses. On Linux; elsewhere there are none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

#: Libraries of the C library and of the kernel, which do not travel.
_OF_THE_SYSTEM = re.compile(
    r"(ld-linux.*|ld-musl.*|linux-vdso|libc\.musl.*|lib(c|m|dl|pthread|rt|util|resolv|nsl|anl|mvec))\.so(\.\d+)*$"
)
_LISTED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def shared_libraries(objects: Sequence[Path]) -> dict[str, Path]:
    """Return the libraries of the system that programs and libraries need, by the names that they need, without the C
    library's and those among ``objects``."""
    if sys.platform != "linux" or shutil.which("ldd") is None:
        return {}
    command = ["ldd", *map(str, objects)]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    own = {os.path.realpath(path) for path in objects}
    found = {name: Path(path) for name, path in _LISTED.findall(listed) if not _OF_THE_SYSTEM.match(name)}
    return {name: path for name, path in found.items() if os.path.realpath(path) not in own}


def library_licenses(libraries: Iterable[Path]) -> list[tuple[str, str]]:
    """Return the licenses of libraries, as the system has them, with their titles."""
    licenses = {path: copyright_of(path) for path in libraries}
    return [
        (f"{path.name}, a library of the system", license.read_text("utf-8", "replace"))
        for path, license in licenses.items()
        if license is not None
    ]


def copyright_of(path: Path) -> Path | None:
    """Return the file with the license of the Debian package that a file is of, if it is of one."""
    if shutil.which("dpkg") is None:
        return None
    for name in (str(path), os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")):
        output = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True, check=False).stdout
        package = output.partition(": ")[0].partition(":")[0]
        source = Path("/usr/share/doc", package, "copyright")
        if package and source.is_file():
            return source
    return None
