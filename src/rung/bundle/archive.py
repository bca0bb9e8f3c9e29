"""The packages of a bundle as one compressed stream, and the texts of their licenses."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from rung.bundle.libraries import shared_libraries
from rung.bundle.packages import Package, own_files, own_license
from rung.core.version import __version__

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
