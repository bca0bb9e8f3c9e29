"""A folder to ``chroot`` to: a shell, what unpacks an archive, glibc, and nothing else; with a Python or without."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

#: What any Linux with a shell has.
_PROGRAMS = ("sh", "tar", "gzip", "dd", "wc", "mktemp", "mkdir", "chmod", "mv", "rm", "env")
#: The other libraries of glibc, which no program above needs.
_GLIBC = "m|dl|pthread|rt|resolv|util"


def make(folder: Path, python: Path | None = None) -> None:
    """Make the system; with ``python``, an interpreter, its standard library and libraries."""
    for name in _PROGRAMS:
        found = shutil.which(name)
        assert found is not None
        _put(folder, Path(found), Path("/bin", name))
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    for path in re.findall(rf"lib(?:{_GLIBC})\.so\.\d .*?=> (\S+)", listed):
        _copy(folder, path)
    for folder_name in ("dev", "tmp", "root"):
        (folder / folder_name).mkdir(exist_ok=True)
    os.mknod(folder / "dev" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(folder / "dev" / "urandom", stat.S_IFCHR | 0o666, os.makedev(1, 9))
    os.chmod(folder / "dev" / "null", 0o666)
    if python is not None:
        _put(folder, python, python)
        library = Path(os.__file__).parent
        ignored = shutil.ignore_patterns("test", "tests", "site-packages", "__pycache__", "config-*", "idlelib")
        shutil.copytree(library, folder / library.relative_to("/"), ignore=ignored, dirs_exist_ok=True)
        for extension in (library / "lib-dynload").glob("*.so"):
            _libraries(folder, extension)


def _put(folder: Path, source: Path, path: Path) -> None:
    """Copy a program with its libraries to a place of the system."""
    out = folder / path.relative_to("/")
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(os.path.realpath(source), out)
    _libraries(folder, source)


def _libraries(folder: Path, program: Path) -> None:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    for path in re.findall(r"(/\S+\.so\S*)", said):
        _copy(folder, path)


def _copy(folder: Path, path: str) -> None:
    out = folder / path.removeprefix("/")
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), out)


def run_there(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the system, with an empty environment."""
    return subprocess.run(
        [str(shutil.which("chroot")), str(folder), *command],
        env={"PATH": "/bin", "HOME": "/root", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def possible() -> bool:
    """Return whether a chroot can be made here."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("chroot") is not None
