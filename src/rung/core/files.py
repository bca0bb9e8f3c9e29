"""Files that are there whole or not at all, whatever happens while they are written; their state, and their text."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rung.core.errors import DiskFull, UsageError

#: Errors of writing where a disk, or what one may have of it, is full.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raises ``DiskFull`` and ``UsageError`` for what the system says against writing ``out`` in the block."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"No room for {out}.", ["nothing was changed"], ["name a place on another disk"]) from error
        raise UsageError(
            f"{out} cannot be written: {error.strerror or error}.", [], ["name another place"], code="output-unwritable"
        ) from error


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of ``path``, with its suffix, which becomes ``path`` when the block ends well.

    It is on the disk before it gets its name, and takes the permissions that a new file gets. Raises ``OSError``.
    """
    number, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix.lower(), dir=path.absolute().parent)
    os.close(number)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def state_of(paths: Iterable[Path]) -> str:
    """A hash of where files lie, of their sizes and of when they were changed. Raises ``OSError``."""
    digest = hashlib.sha256()
    for path in paths:
        found = path.stat()
        digest.update(f"{path.resolve()} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all. Raises ``OSError``."""
    with written_whole(path) as temporary:
        temporary.write_bytes(data)


#: What is kept that long is not taken away: something may be computing with it. Seconds.
_IN_USE = 24 * 3600.0


def trim(folder: Path, most: int, in_use: float = _IN_USE) -> None:
    """Takes the files and folders away from a folder that were used (``used``) longest ago, until it holds at most
    ``most`` bytes; what was used in the last ``in_use`` seconds stays. What cannot be taken away stays too."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # another process takes it away
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            found.append((path.stat().st_mtime, sum(file.stat().st_size for file in files), path))
    left = sum(size for _, size, _ in found)
    for last, size, path in sorted(found, key=lambda each: each[0]):
        if left <= most or last > time.time() - in_use:
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
        left -= size


def used(path: Path) -> None:
    """Says that a file or folder of a cache is of use now, where that can be written."""
    with contextlib.suppress(OSError):
        os.utime(path)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the path of every file below a folder; other processes may remove folders meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def read_text(path: Path, ways_out: Sequence[str] = ()) -> str:
    """Return the text of a file in UTF-8. Raises ``UsageError``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        cause = f"{path} cannot be read: {error.strerror or error}."
        raise UsageError(cause, (), ways_out, code="file-unreadable") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8.", [f"first at byte {error.start:,}"], ways_out) from error
