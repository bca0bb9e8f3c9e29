"""Keep what was typed in chats, kept across sessions in the cache folder, for this user's eyes only."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from rung.core.settings import CACHE, HISTORY

_FILE = "chat_history.jsonl"
#: Lines that are offered again; longer texts, as pasted files are, are not kept.
_MOST_LINES, _MOST_CHARACTERS = 1000, 4000
_MOST_BYTES = 8 * 2**20


class History:
    """The texts typed so far, oldest first. A file that cannot be read or written costs the history and no chat."""

    def __init__(self) -> None:
        self._path: Path | None = CACHE.read() / _FILE if HISTORY.read() else None
        self.lines = self._read()

    def _read(self) -> list[str]:
        if self._path is None:
            return []
        try:
            with open(self._path, "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _MOST_BYTES, 0))
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        found = []
        for line in data.splitlines():
            with contextlib.suppress(ValueError):  # half a line: the machine stopped while it was written
                text = json.loads(line)
                if isinstance(text, str):
                    found.append(text)
        if len(found) > 2 * _MOST_LINES:
            self._write(found[-_MOST_LINES:], os.O_TRUNC)
        return found[-_MOST_LINES:]

    def add(self, text: str) -> None:
        """Keep a text, unless it is the last one again, or long."""
        if text.strip() and len(text) <= _MOST_CHARACTERS and self.lines[-1:] != [text]:
            self.lines.append(text)
            self._write([text], os.O_APPEND)

    def _write(self, lines: list[str], how: int) -> None:
        if self._path is None:
            return
        data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        with contextlib.suppress(OSError):  # a home that cannot be written, a full disk
            self._path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o600)
            with open(number, "wb") as file:
                file.write(data)
