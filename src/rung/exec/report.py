"""Hold what was done in the processes of a program, handed to the launcher through a file: a line of JSON each."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading

Key = tuple[str, str, str, str, str]
#: Not a step: a process of the program came to the hook that has the processor answer to CUDA.
STOOD_IN: Key = ("", "cuda", "", "", "")


class Notes:
    """The steps down of this process, each written when it first happens, and with its count at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._counts: dict[Key, int] = {}
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forget)

    def step(self, op: str, device: str, before: str, after: str, reason: str) -> None:
        """Counts an operation that was computed otherwise: from one dtype or algorithm to another, and why."""
        key = (op, device, before, after, reason)
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == 1:
            self._write([(key, 1)])

    def stood_in(self) -> None:
        """The processor answers to CUDA in this process."""
        self.step(*STOOD_IN)

    def word(self, text: str) -> None:
        """Something that was left out, once."""
        self.step("", "", "", "", text)

    def finish(self) -> None:
        self._write([(key, count) for key, count in self._counts.items() if count > 1])

    def _forget(self) -> None:
        """A forked process counts its own; what happened before is its parent's."""
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(self._counts, 0)

    def _write(self, rows: list[tuple[Key, int]]) -> None:
        text = "".join(json.dumps([os.getpid(), *key, count]) + "\n" for key, count in rows)
        with contextlib.suppress(OSError):  # a program may clear its temporary folder: then its steps stay unsaid
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)


def read(path: str) -> dict[Key, int]:
    """The steps of all processes with their counts, in the order in which they first happened."""
    latest: dict[tuple[int, Key], int] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            process, *key, count = json.loads(line)
            latest[(process, tuple(key))] = count
    found: dict[Key, int] = {}
    for (_, key), count in latest.items():
        found[key] = found.get(key, 0) + count
    return found
