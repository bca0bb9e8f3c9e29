"""A result that is not finished: it lies beside its place under another name, with a journal of what is in it.

``TARGET.part`` has its full size from the start; every tensor has its place in it. What a tensor's line in
``TARGET.part.journal`` says has been synced to the disk before. So a run that was killed at any moment goes on with
the next tensor, and the finished result gets its name in one step.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rung.core.errors import DiskFull, UsageError
from rung.core.files import FULL
from rung.core.text import quoted, size

#: What may be written, or wait, before it is made safe: so much of the work is done again after a kill.
_BYTES_UNSAFE = 64 * 2**20


def check_new(target: Path) -> None:
    """Raises ``UsageError`` where something has the name of the result, or nothing can have it."""
    with _disk(target):
        there = target.exists()
    if there:
        if not target.with_name(f"{target.name}.part").exists():  # a run was killed after its last step
            target.with_name(f"{target.name}.part.journal").unlink(missing_ok=True)
        raise UsageError(
            f"{target} is there already",
            ["nothing is written over; give the result another name, or remove this one"],
            [f"rm {'-r ' if target.is_dir() else ''}{quoted(target)}   # if it is no longer needed"],
            code="output-exists",
        )


@dataclass(frozen=True)
class Planned:
    """One file of the result: its name ("" where the result is a single file), its first bytes and its length."""

    name: str
    head: bytes
    length: int


class Partial:
    """Writes the files of a result; a context manager.

    ``work`` names everything that the result depends on: an unfinished one of other work is thrown away. ``done`` has
    the records of the tensors that are finished, by their numbers; ``resumed`` says whether there were any.
    Raises ``UsageError`` where the target is there already, another process writes it or nothing can; ``DiskFull``.
    """

    def __init__(self, target: Path, files: Sequence[Planned], work: str) -> None:
        self.target, self._files, self._work = target, files, work
        self.path = target.with_name(f"{target.name}.part")
        self._journal = target.with_name(f"{target.name}.part.journal")
        self.done: dict[int, Any] = {}
        self._waiting: list[bytes] = []
        self._unsafe = 0
        self._handles: list[int] = []
        self._log = -1

    def __enter__(self) -> Self:
        check_new(self.target)
        try:
            with _disk(self.target):
                self.target.parent.mkdir(parents=True, exist_ok=True)
                self._log = os.open(self._journal, os.O_RDWR | os.O_CREAT, 0o644)
                self._lock()
                self.done = self._recorded()
                self._check_room()
                if not self.done:
                    self._begin()
                self._handles = [os.open(self._part(file), os.O_WRONLY) for file in self._files]
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is KeyboardInterrupt:
                self.sync()  # what is whole need not be done again
        finally:
            self._close()

    def _close(self) -> None:
        for handle in (*self._handles, self._log):
            if handle >= 0:
                os.close(handle)
        self._handles, self._log = [], -1

    @property
    def resumed(self) -> bool:
        """Return whether tensors of an earlier run are kept."""
        return bool(self.done)

    def put(self, file: int, offset: int, data: Any) -> None:
        """Writes the bytes of a contiguous array (or ``bytes``) at a place of a file. Raises ``DiskFull``."""
        view = memoryview(data).cast("B")
        self._unsafe += len(view)
        with _disk(self.target):
            while len(view):
                written = os.pwrite(self._handles[file], view, offset)
                view, offset = view[written:], offset + written

    def record(self, number: int, what: Mapping[str, Any]) -> None:
        """Says that tensor ``number`` is written whole; ``what`` is kept with it."""
        self.done[number] = what
        self._waiting.append(json.dumps({"tensor": number, **what}).encode() + b"\n")
        if self._unsafe >= _BYTES_UNSAFE:
            self.sync()

    def sync(self) -> None:
        """Makes safe what has been written: first the tensors, then the lines that say so. Raises ``DiskFull``."""
        with _disk(self.target):
            for handle in self._handles:
                os.fdatasync(handle)
            lines = b"".join(self._waiting)
            while lines:
                lines = lines[os.write(self._log, lines) :]
            os.fdatasync(self._log)
        self._waiting, self._unsafe = [], 0

    def finish(self, small: Mapping[str, bytes]) -> None:
        """Writes the ``small`` files of a folder, and gives the result its name. Raises ``DiskFull``."""
        self.sync()
        with _disk(self.target):
            for name, data in small.items():
                _write_new(self.path / name, data)
            if self.path.is_dir():
                _sync_folder(self.path)
            os.rename(self.path, self.target)
            _sync_folder(self.target.parent)
            self._journal.unlink()

    # ---- beginning

    def _part(self, file: Planned) -> Path:
        return self.path / file.name if file.name else self.path

    def _lock(self) -> None:
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"Another process is writing {self.target}",
                (),
                ["wait for it, or give the result another name"],
                code="in-use",
            ) from error

    def _recorded(self) -> dict[int, Any]:
        """The finished tensors of an earlier run of the same work; nothing where it left no whole files."""
        lines = os.pread(self._log, os.fstat(self._log).st_size, 0).split(b"\n")
        if lines[0] != self._first_line() or not all(
            self._part(file).is_file() and self._part(file).stat().st_size == file.length for file in self._files
        ):
            return {}
        # the last piece is empty, or a line that was not finished: it is cut off before others are added
        os.ftruncate(self._log, sum(len(line) + 1 for line in lines[:-1]))
        os.lseek(self._log, 0, os.SEEK_END)
        records = (json.loads(line) for line in lines[1:-1])
        return {record.pop("tensor"): record for record in records}

    def _first_line(self) -> bytes:
        return json.dumps({"work": self._work}).encode()

    def _begin(self) -> None:
        os.ftruncate(self._log, 0)
        os.lseek(self._log, 0, os.SEEK_SET)
        os.fsync(self._log)
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)
        if self._files[0].name:
            self.path.mkdir()
        for file in self._files:
            _write_new(self._part(file), file.head, file.length)
        os.write(self._log, self._first_line() + b"\n")
        os.fsync(self._log)
        _sync_folder(self.path if self.path.is_dir() else self.path.parent)

    def _check_room(self) -> None:
        needed = sum(file.length for file in self._files)
        there = sum(self._part(file).stat().st_blocks * 512 for file in self._files if self._part(file).is_file())
        free = shutil.disk_usage(self.target.parent).free + there
        if needed > free:
            if not there:
                self._journal.unlink()
            raise DiskFull(
                f"{self.target.parent} has {size(free)} free, and {self.target.name} needs {size(needed)}",
                (),
                ["free some room, or name a place on another disk", "take a format with fewer bits:  rung formats"],
            )


def _write_new(path: Path, data: bytes, length: int = 0) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.truncate(max(length, len(data)))
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _disk(target: Path) -> Iterator[None]:
    """A full disk as an error that says what is kept; what else the system says against writing as one that says it."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise UsageError(
                f"{target} cannot be written: {error.strerror or error}",
                [error.filename] if error.filename and Path(error.filename) != target else [],
                ["name another place"],
                code="output-unwritable",
            ) from error
        raise DiskFull(
            f"The disk is full: {target} could not be written.",
            ["what has been written is kept in " + target.name + ".part"],
            [
                "free some room and give the same command again: it goes on where it stopped",
                f"rm -r {quoted(target)}.part*",
            ],
        ) from error
