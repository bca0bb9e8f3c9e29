"""The cache of proofs: JSON values on disk, found by a key of strings.

Written atomically, so that two processes at once and a power cut leave whole files. A folder that cannot be written
or a file that cannot be read costs a note and a new measurement, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rung.core.settings import CACHE

#: A longer file is none of ours.
_LARGEST = 1 << 22


def folder() -> Path:
    """The folder that the proofs lie in; it need not exist."""
    path: Path = CACHE.read()
    return path / "proofs"


def _file(key: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return folder() / f"{digest[:32]}.json"


def how_often(why: bool = False) -> str:
    """Return "once", or "each time" (and ``why``) where nothing can be kept: how often a person waits for a proof."""
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return "once"
    except OSError as error:
        reason = f": {path} cannot be written ({error.strerror or error}). RUNG_CACHE names another folder"
        return "each time" + reason * why


def read(key: Mapping[str, str]) -> Any | None:
    """The value stored under ``key``, or None: never stored, unreadable, corrupt, or another key's."""
    try:
        with open(_file(key), "rb") as file:
            data = json.loads(file.read(_LARGEST))
        return data["value"] if data["key"] == dict(key) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write(key: Mapping[str, str], value: Any) -> str:
    """Stores a JSON-able value under ``key``; returns an empty string, or a sentence why it could not be kept."""
    path = _file(key)
    new = path.with_name(f".{path.stem}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(new, "x", encoding="utf-8") as file:
            json.dump({"key": dict(key), "value": value}, file)
        os.replace(new, path)
    except OSError as error:
        reason = error.strerror or str(error)
        return f"{path.parent} cannot be written ({reason}), so this is measured again next time: set RUNG_CACHE"
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
    return ""


def remove(key: Mapping[str, str]) -> None:
    """Forgets the value stored under ``key``, if there is one and the folder can be written."""
    with contextlib.suppress(OSError):
        _file(key).unlink()


@contextlib.contextmanager
def lock(key: Mapping[str, str], seconds: float = 60.0) -> Iterator[None]:
    """Let one process at a time find out the value of ``key``; the next ones then read it.

    Goes ahead without a lock where there can be none, and after ``seconds``.
    """
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            path = _file(key).with_suffix(".lock")
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a", encoding="utf-8"))
            deadline = time.monotonic() + seconds
            while not _locked(fcntl, file.fileno()) and time.monotonic() < deadline:
                time.sleep(0.05)
        except (OSError, ImportError):
            pass  # a folder that cannot be written, a system without locks: two may measure the same
        yield


def _locked(fcntl: Any, handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
