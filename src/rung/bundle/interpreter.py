"""The Python that travels in a bundle of ``--with-python``: the one that runs rung, with the libraries that it needs.

Linux only. glibc does not travel: the system has one, no older than that of the machine where the bundle was made.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rung.bundle.archive import Member
from rung.bundle.libraries import copyright_of, library_licenses, shared_libraries
from rung.core.errors import SoftwareMissing, UsageError
from rung.models.files.bundled import ALIGNMENT

#: What of the standard library no part of rung imports, or is of another place.
_LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "distutils", "venv"),
    *("__pycache__", "site-packages", "dist-packages"),
}
_EXTENSIONS_LEFT_OUT = re.compile(
    r"_tkinter|_test|_ctypes_test|xxlimited|_xx|nis|_g?dbm|_curses|_crypt|ossaudiodev|spwd"
)
_NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

#: What the shell of a system without Python runs; ``tar`` and ``gzip`` are all that it must have beside its own.
_SHELL = """\
if [ "$(wc -c < "$0")" -ne {total} ]; then
  echo "$0 was cut off: copy the file again." >&2
  exit 1
fi
home=${{{cache}:-${{XDG_CACHE_HOME:-${{HOME:-/root}}/.cache}}/rung}}/bundles
python=$home/{folder}
if [ ! -d "$python" ]; then
  echo "Unpacking Python, once: {megabytes} MB into $home" >&2
  mkdir -p "$home" && temporary=$(mktemp -d "$home/.XXXXXX") || exit 1
  trap 'rm -rf "$temporary"' EXIT
  if ! dd if="$0" bs={block} skip={skip} count={count} 2>/dev/null | tar -xzf - -C "$temporary"; then
    echo "Python cannot be unpacked into $home." >&2
    echo "What to do" >&2
    echo "  1  {cache}=FOLDER $0   # a folder with {megabytes} MB of room" >&2
    exit 1
  fi
  chmod 755 "$temporary"
  mv -T "$temporary" "$python" 2>/dev/null || [ -d "$python" ] || exit 1
fi
unset PYTHONHOME PYTHONPATH
export BROWSER="${{BROWSER:-env -u LD_LIBRARY_PATH xdg-open %s}}"
export LD_LIBRARY_PATH="$python/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
if ! "$python/bin/{name}" -c ""; then
  echo "This bundle needs glibc {glibc} or later, on a processor of the kind {machine}." >&2
  exit 1
fi
exec "$python/bin/{name}" "$0" "$@"
"""


def shell_lines(python: Mapping[str, Any], total: int, cache: str) -> str:
    """Return the shell program of a bundle of ``total`` bytes; ``python`` says where its Python is, ``cache`` is the
    name of the variable that names the cache."""
    return _SHELL.format(
        total=total,
        cache=cache,
        folder=python["sha256"][:32],
        megabytes=(python["unpacked"] >> 20) + 1,
        block=ALIGNMENT,
        skip=python["begin"] // ALIGNMENT,
        count=-(-python["size"] // ALIGNMENT),
        name=_NAME,
        glibc=_glibc(),
        machine=os.uname().machine,
    )


def _glibc() -> str:
    return (os.confstr("CS_GNU_LIBC_VERSION") or "glibc unknown").split()[-1]


def check_possible() -> None:
    """Raise ``UsageError`` where Python cannot travel."""
    if sys.platform != "linux" or not _glibc()[0].isdigit():
        raise UsageError(
            "--with-python is for Linux with glibc.",
            [],
            ["the same command without --with-python   # a bundle for any system with Python"],
            code="option-without-effect",
        )
    if shutil.which("ldd") is None:
        raise SoftwareMissing(
            "ldd is not here, which tells the libraries that Python needs.", [], ["apt install libc-bin"]
        )


def interpreter_files(extensions: Iterable[Path]) -> list[Member]:
    """Return the files of this Python by their places below its folder: program, standard library, and the libraries
    that it and ``extensions``, compiled modules of packages, need from the system."""
    library = Path(os.__file__).parent
    program = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    standard = [
        (PurePosixPath("lib", _NAME, path.relative_to(library).as_posix()), path) for path in _standard(library)
    ]
    objects = [program, *(path for _, path in standard if ".so" in path.name), *extensions]
    shared = [(PurePosixPath("lib", name), path) for name, path in sorted(shared_libraries(objects).items())]
    return [(PurePosixPath("bin", _NAME), program), *standard, *shared]


def _standard(library: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")]
        for name in names:
            compiled = Path(parent).name == "lib-dynload"
            if not (compiled and _EXTENSIONS_LEFT_OUT.match(name)) and not name.endswith((".pyc", ".a")):
                found.append(Path(parent, name))
    return found


def license_texts(members: Sequence[Member]) -> list[tuple[str, str]]:
    """Return the license of Python and those of its libraries, with their titles."""
    library = Path(os.__file__).parent
    paths = [library / "LICENSE.txt", copyright_of(library / "os.py")]
    text = next((path.read_text("utf-8", "replace") for path in paths if path and path.is_file()), "")
    shared = [path for name, path in members if name.parent == PurePosixPath("lib")]
    return [(f"Python {sys.version.split()[0]}", text), *library_licenses(shared)]
