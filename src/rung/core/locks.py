"""Locks between processes and marks of use, on every system.

A lock is the system's own (``flock``, else that of ``msvcrt``), which ends with its process. Where Python has neither,
it is a file that names its process; one whose process has ended counts for nothing. Marks of use are always such files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

#: Seconds between two attempts to take a lock.
_EVERY = 0.1
#: Seconds by which two readings of the start of one process may differ.
_SAME_START = 2.0


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock called ``path`` in the block; ``on_wait`` is called once if another process has it.

    Raises ``OSError`` where the file cannot be made.
    """
    lock = try_lock(path)
    if lock is None:
        on_wait()
    while lock is None:
        time.sleep(_EVERY)
        lock = try_lock(path)
    try:
        yield
    finally:
        lock()


def try_lock(path: Path) -> Callable[[], None] | None:
    """Take the lock called ``path`` if it is free; return what gives it back, or None. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    take = _system_lock()
    owner = path.with_suffix(f"{path.suffix}.owner")
    if take is None:
        return _try_file(owner)
    file = open(path, "a+b")  # noqa: SIM115 - open as long as the lock is held
    try:
        handle = take(file)
    except OSError:  # a file system without locks
        file.close()
        return _try_file(owner)
    if not handle:
        file.close()
        return None
    return file.close


def lock_open_file(file: IO[bytes]) -> bool:
    """Take the system's lock of an open file until it is closed; False if another process has it.

    True, too, where Python has no locks of files: two processes are then told apart by nothing.
    """
    take = _system_lock()
    return take is None or take(file)


def _system_lock() -> Callable[[IO[bytes]], bool] | None:
    """Return the function that locks an open file, or None where Python has none."""
    with contextlib.suppress(ImportError):
        import fcntl

        return lambda file: _take(lambda: fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB))
    with contextlib.suppress(ImportError):
        windows: Any = __import__("msvcrt")

        def take(file: IO[bytes]) -> bool:
            at = file.tell()
            file.seek(0)  # where all processes lock, and back: the caller goes on writing where it was
            try:
                return _take(lambda: windows.locking(file.fileno(), windows.LK_NBLCK, 1))
            finally:
                file.seek(at)

        return take
    return None


def _take(locking: Callable[[], None]) -> bool:
    try:
        locking()
    except (BlockingIOError, PermissionError):
        return False
    return True


def _try_file(path: Path) -> Callable[[], None] | None:
    """Take a lock that is a file with the name of its process."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(this_process())
    except FileExistsError:
        _drop_dead(path)
        return None
    return lambda: path.unlink(missing_ok=True)


def _drop_dead(path: Path) -> None:
    """Remove the lock of a process that has ended, unless another process took its place just now."""
    try:
        owner, age = path.read_text(encoding="utf-8"), time.time() - path.stat().st_mtime
        if is_running(owner) or (not owner and age < _SAME_START):  # empty: just made, its name is not in it yet
            return
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        os.replace(path, aside)
        if aside.read_text(encoding="utf-8") != owner:  # a living one took it between the two lines above
            with contextlib.suppress(OSError):
                os.link(aside, path)
        aside.unlink()
    except OSError:
        return  # it is gone already


def this_process() -> str:
    """Return a name of this process that no later process with its number has."""
    return name_process(os.getpid())


def name_process(number: int) -> str:
    """Return a name of the running process of that number; the number alone where it has ended."""
    import psutil

    try:
        return f"{number} {psutil.Process(number).create_time():.2f}"
    except psutil.Error:
        return str(number)


def is_running(owner: str) -> bool:
    """Tell whether the process that ``this_process`` named still runs."""
    import psutil

    try:
        number, start = owner.split()
        found = psutil.Process(int(number))
        return bool(found.status() != psutil.STATUS_ZOMBIE and abs(found.create_time() - float(start)) < _SAME_START)
    except (ValueError, psutil.Error):
        return False


def mark_use(folder: Path) -> None:
    """Leave a mark in ``folder`` that this process uses something, until it ends; do nothing where that cannot be."""
    import atexit

    mark = folder / str(os.getpid())
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(this_process(), encoding="utf-8")
        atexit.register(_remove_mark, mark, os.getpid())


def _remove_mark(mark: Path, process: int) -> None:
    if os.getpid() == process:  # a fork leaves its parent's mark alone
        with contextlib.suppress(OSError):
            mark.unlink()


def users_of(folder: Path) -> list[int]:
    """Return the numbers of the running processes, this one apart, that marked ``folder``; drop marks of ended ones."""
    found = []
    for mark in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            if is_running(mark.read_text(encoding="utf-8")):
                found.append(int(mark.name))
            else:
                mark.unlink()
    return [number for number in found if number != os.getpid()]
