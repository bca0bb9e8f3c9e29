"""Ask a script in a process of its own, which may take no more time than it is given.

Requests and answers are JSON, one a line (``script_loop.py``). The script imports what this process can import, and
of rung what starts fast.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

_START_SECONDS = 60.0
_LOOP = Path(__file__).with_name("script_loop.py")


class ScriptProcess:
    """A process of a script: one request at a time."""

    def __init__(self, script: Path) -> None:
        self._process = subprocess.Popen(
            # -P: nothing of the current folder stands for a module.
            [sys.executable, "-P", "-X", "utf8", str(_LOOP), json.dumps([sys.path, str(script)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the answer, not for this process
        )
        self._ready = False
        self._rest = b""
        self._finish = weakref.finalize(self, _end, self._process, os.getpid())

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Return the answer, or None when there is none in time or the process has ended."""
        if not self._ready:
            if self._line(time.monotonic() + _START_SECONDS) is None:
                return None
            self._ready = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None  # it has ended
        line = self._line(time.monotonic() + seconds)
        found = json.loads(line) if line else None
        return found if isinstance(found, dict) else None

    def _line(self, deadline: float) -> bytes | None:
        assert self._process.stdout is not None
        channel = self._process.stdout.fileno()
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([channel], [], [], left)[0]:
                return None
            data = os.read(channel, 2**20)
            if not data:
                return None
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def end(self) -> None:
        """End the process."""
        self._finish()


def _end(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() == parent:  # not in a fork of it
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue  # what was still to be written has no reader any more
