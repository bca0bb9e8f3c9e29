"""The packages, the Python and the libraries that travel in a bundle, with their licenses."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rung.core.errors import SoftwareMissing, UsageError
from rung.core.version import PACKAGE, __version__
from rung.models.files.gguf import BUNDLE_ALIGNMENT

#: The packages that rung imports to serve and to run language models on a CPU, and a module of each.
NEEDED = {
    "numpy": "numpy",
    "numba": "numba",
    "typer": "typer",
    "rich": "rich",
    "psutil": "psutil",
    "jinja2": "jinja2",
    "tokenizers": "tokenizers",
    "sentencepiece": "sentencepiece",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "msgspec": "msgspec",
    "llguidance": "llguidance",
}
#: What one of them names and does without: nothing is fetched from the hub.
_WITHOUT = {"huggingface-hub"}
#: Files that no program imports.
_LEFT_OUT = {".pyi", ".pyc", ".a", ".lib", ".h", ".hpp", ".c", ".cpp", ".pxd", ".pyx"}
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LICENSE = re.compile(r"licen[sc]e|copying|notice|authors", re.IGNORECASE)


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    distribution: Distribution

    @property
    def version(self) -> str:
        """Return its release."""
        return self.distribution.version

    def files(self) -> Iterator[tuple[PurePosixPath, Path]]:
        """Yield the files that travel: their paths below a folder of packages, and where they are."""
        for file in self.distribution.files or ():
            path = Path(str(self.distribution.locate_file(file)))
            if travels(file) and path.is_file():
                yield PurePosixPath(file), path

    @cached_property
    def license(self) -> str:
        """Return the name of its license, as its metadata has it."""
        about = self.distribution.metadata
        names = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or () if "License ::" in text]
        stated = [about[field] for field in ("License-Expression", "License") if field in about]
        return " ".join((stated or [" and ".join(names)])[0].split())[:80] or "unknown"

    def license_texts(self) -> list[str]:
        """Return the texts of its licenses. Some wheels of Apache's license have none: it is rung's own."""
        found = [file for path, file in self.files() if _LICENSE.search(path.name) and path.suffix != ".py"]
        texts = [file.read_text("utf-8", "replace") for file in sorted(found)]
        return texts or ([own_license()] if "apache" in self.license.lower() else [])


def travels(file: PurePosixPath) -> bool:
    """Return whether a file of a package travels, by its name: tests and what no program imports do not."""
    return file.suffix not in _LEFT_OUT and not {"..", "tests", "__pycache__"} & set(file.parts)


def own_license() -> str:
    """Return rung's license: the Apache License, Version 2.0."""
    source = PACKAGE.parents[1] / "LICENSE"
    if source.is_file():
        return source.read_text("utf-8")
    (found,) = Package("rung", importlib.metadata.distribution("rung")).license_texts()
    return found


def own_files() -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the files of rung that travel: their paths below a folder of packages, and where they are."""
    for file in sorted(PACKAGE.rglob("*")):
        path = file.relative_to(PACKAGE.parent)
        if file.is_file() and file.suffix not in (".pyc", ".gguf") and "__pycache__" not in path.parts:
            yield PurePosixPath(path.as_posix()), file


def needed() -> list[Package]:
    """Return the packages that travel, by name. Raises ``SoftwareMissing`` where one of them is not installed."""
    found: dict[str, Package] = {}
    names = list(NEEDED)
    while names:
        name = _normal(names.pop())
        if name in found or name in _WITHOUT:
            continue
        try:
            found[name] = Package(name, importlib.metadata.distribution(name))
        except PackageNotFoundError:
            raise SoftwareMissing(
                f"{name} is not installed; a bundle carries it.", (), ["pip install 'rung[lean,serve]'"]
            ) from None
        names += _requirements(found[name].distribution)
    return sorted(found.values(), key=lambda each: each.name)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(distribution: Distribution) -> list[str]:
    """Return the names that a package requires here: those of an extra are not, those of another system only if they
    are installed."""
    names = []
    for line in distribution.requires or ():
        text, _, marker = line.partition(";")
        found = _REQUIREMENT.match(text)
        if found and "extra" not in marker and (not marker or _is_installed(found[0])):
            names.append(found[0])
    return names


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except PackageNotFoundError:
        return False
    return True


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


#: When all files were changed, in seconds since 1970: the same packages are the same bytes.
_CHANGED = 315532800
_LEVEL = 6
_RULE = "=" * 100
#: A file: its name in an archive, and its path here.
Member = tuple[PurePosixPath, Path]


@dataclass(frozen=True)
class Archive:
    """A tar file compressed by gzip: its bytes, their hash in hex, and the bytes of what lies in it."""

    size: int
    sha256: str
    unpacked: int


class _Hashed:
    """A file to write to that hashes what it is given."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write all of ``data``."""
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing: the file has its own buffer."""


def write_archive(
    file: IO[bytes], members: Iterable[Member], progress: Callable[[int], None] = lambda done: None
) -> Archive:
    """Write files, given by their names in the archive and their paths, to ``file``; equal files give equal bytes.

    ``progress`` is called with the bytes that were read. Raises ``OSError``.
    """
    hashed, unpacked = _Hashed(file), 0
    with (
        gzip.GzipFile("", "wb", _LEVEL, hashed, mtime=0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, path in sorted(members):
            about = tarfile.TarInfo(str(name))
            found = path.stat()
            about.size, about.mtime, about.mode = found.st_size, _CHANGED, 0o755 if found.st_mode & 0o100 else 0o644
            with path.open("rb") as member:
                archive.addfile(about, member)
            unpacked += about.size
            progress(unpacked)
    return Archive(hashed.size, hashed.digest.hexdigest(), unpacked)


def members(packages: Sequence[Package]) -> list[Member]:
    """Return the members of the archive: rung below ``program``, other packages below ``packages``, and the system's
    libraries that those need below ``libraries``."""
    found = [("program" / name, path) for name, path in own_files()]
    found += [("packages" / name, path) for package in packages for name, path in package.files()]
    needed = shared_libraries(compiled(found))
    return found + [(PurePosixPath("libraries", name), path) for name, path in needed.items()]


def compiled(members: Sequence[Member]) -> list[Path]:
    """Return the compiled files of packages among files, as Linux has them."""
    return [path for name, path in members if name.parts[0] == "packages" and ".so" in path.name]


def licenses(packages: Sequence[Package], model: str, others: Sequence[tuple[str, str]] = ()) -> str:
    """Return the licenses of all that travels; ``model`` is what is said of the model's, ``others`` are titles and
    texts."""
    texts = [("The model", model), (f"rung {__version__}: Apache-2.0", own_license())]
    texts += [(f"{each.name} {each.version}: {each.license}", "\n\n".join(each.license_texts())) for each in packages]
    for path, source in own_files():
        if path.name.startswith("LICENSE"):
            texts.append((f"{path.parent.name}/{path.name} of the page", source.read_text("utf-8")))
    texts += others
    return "\n\n".join(f"{_RULE}\n{title}\n{_RULE}\n\n{text.strip()}" for title, text in texts) + "\n"


#: What of the standard library no part of rung imports, or is of another place.
_FOLDERS_LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "distutils", "venv"),
    *("__pycache__", "site-packages", "dist-packages"),
}
_EXTENSIONS_LEFT_OUT = re.compile(
    r"_tkinter|_test|_ctypes_test|xxlimited|_xx|nis|_g?dbm|_curses|_crypt|ossaudiodev|spwd"
)
_NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

#: What the shell of a system without Python runs; beyond a plain shell it needs ``tar`` and ``gzip``.
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
        block=BUNDLE_ALIGNMENT,
        skip=python["begin"] // BUNDLE_ALIGNMENT,
        count=-(-python["size"] // BUNDLE_ALIGNMENT),
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
        folders[:] = [name for name in folders if name not in _FOLDERS_LEFT_OUT and not name.startswith("config-")]
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
