"""Hold what a person types or pastes, a turn at a time: editing and history, pasted texts whole, and texts in
\"\"\"."""

from __future__ import annotations

import contextlib
import importlib
import re
import select
import sys
from collections.abc import Collection
from typing import Any

from rung.cli.chat.history import History

_PROMPT, _MORE = ">>> ", "... "
_MARK = '"""'
_OPENS = re.compile(r'\s*(/\w+\s+)?"""')
#: Lines that follow each other within so many seconds were pasted: nobody types that fast.
_AT_ONCE = 0.03


class Turns:
    """Reads turns from a terminal.

    With GNU readline a bracketed paste comes as one text. Without it, and on terminals that mark no paste, lines
    that arrive at once are one turn. ``commands`` are lines which end such a turn: what was typed ahead is obeyed.
    """

    def __init__(self, commands: Collection[str] = ()) -> None:
        self._commands = commands
        self._typed_ahead = ""
        self._history = History()
        self._editor = _editor(self._history.lines)

    def read(self) -> str:
        """Return the next turn. Raises ``EOFError`` at the end of input and ``KeyboardInterrupt`` for Ctrl-C."""
        text = self._typed_ahead or input(_PROMPT)
        self._typed_ahead = ""
        text = self._quoted(text) if _OPENS.match(text) else self._joined(text)
        self._remember(text)
        return text

    def _joined(self, text: str) -> str:
        """Add the lines that came with a first one."""
        if text.strip() in self._commands:
            return text
        lines = [text]
        while _more_is_waiting():
            try:
                line = input()
            except EOFError:
                break
            if line.strip() in self._commands:
                self._typed_ahead = line
                break
            lines.append(line)
        return "\n".join(lines).rstrip("\n")

    def _quoted(self, text: str) -> str:
        r"""Read on to the closing \"\"\"; return the text without both marks."""
        before, _, inside = text.partition(_MARK)
        lines = [inside]
        while _MARK not in lines[-1]:
            lines.append(input(_MORE))
        inside, _, behind = "\n".join(lines).partition(_MARK)
        return before.lstrip() + inside.strip("\n") + behind

    def _remember(self, text: str) -> None:
        self._history.add(text)
        if self._editor is not None and text.strip():
            self._editor.add_history(text)


def _editor(lines: Collection[str]) -> Any:
    """Line editing with the arrow keys and these lines to go back to; None where this Python has none (Windows)."""
    try:
        readline = importlib.import_module("readline")
    except ImportError:
        return None
    with contextlib.suppress(AttributeError):  # libedit in old Pythons
        readline.set_auto_history(False)  # a turn of several lines is one entry
    readline.parse_and_bind("set enable-bracketed-paste on")  # libedit takes no notice of it
    readline.clear_history()
    for line in lines:
        readline.add_history(line)
    return readline


def _more_is_waiting() -> bool:
    try:
        number = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # no stream of the system
        return False
    try:
        return bool(select.select([number], [], [], _AT_ONCE)[0])
    except (OSError, ValueError):  # Windows selects among sockets only
        return _key_is_waiting()


def _key_is_waiting() -> bool:
    try:
        console: Any = importlib.import_module("msvcrt")
    except ImportError:
        return False
    return bool(console.kbhit())
