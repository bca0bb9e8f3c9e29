"""Print an answer as it comes: its pieces on stdout, wrapped to the terminal; progress and a closing line on stderr."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rung.core.text import printable

if TYPE_CHECKING:
    from rung.core.types import StepDown
    from rung.engine.generation import Generation
    from rung.engine.model import Model


_TAB = 8
#: Lines between such marks are code, which is left as it is.
_FENCES = ("```", "~~~")
#: Categories of characters that take no column: marks on the one before, and formats such as the joiner of emoji.
_NO_COLUMN = ("Mn", "Me", "Cf")


def columns_of(text: str) -> int:
    """Return how many columns a terminal needs for a text without tabs and line ends.

    >>> columns_of("tree"), columns_of("木"), columns_of("e\u0301")
    (4, 2, 1)
    """
    return sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in _NO_COLUMN:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class WordWrapper:
    """Pass text on in pieces, with line ends where a word would cross the edge of the terminal.

    ``write`` takes what is shown; ``width`` gives the columns of the terminal, which people change while they read.
    A word is shown when the character after it is known. Between fences (```) lines are left alone. Wide
    characters (Chinese, Japanese, Korean, emoji) may stand on either side of a line end, as no blanks divide them.
    """

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        self._write, self._terminal, self._edge = write, width, 0
        self._word, self._word_columns = "", 0
        self._blanks = ""  # stand before the word, and go where the line ends there
        self._column = 0
        self._line = ""  # the beginning of the present line, as the model wrote it
        self._code = False

    def push(self, text: str) -> None:
        """Take the next piece of text, and show what is certain."""
        self._edge = max(self._terminal(), 1)
        for character in text:
            self._push(character)

    def finish(self) -> None:
        """Show the last word."""
        self._append_word()

    def _push(self, character: str) -> None:
        if character == "\n":
            self._end_line()
            return
        if len(self._line) < len(_FENCES[0]):
            self._line = (self._line + character).lstrip(" ")
        if self._code:
            self._write(character)
        elif character in " \t":
            self._append_word()
            self._blanks += character
        elif _width(character) == 2:
            self._append_word()
            self._word, self._word_columns = character, 2
        else:
            self._extend(character)

    def _extend(self, character: str) -> None:
        """Add a character to the word; one that is longer than a line is broken where the line ends."""
        if self._word_columns and self._word_columns + _width(character) > self._edge:
            self._append_word()
        if len(self._word) == 1 and self._word_columns == 2 and _width(character):
            self._append_word()
        self._word += character
        self._word_columns += _width(character)

    def _append_word(self) -> None:
        if not self._word:
            return
        blanks = _columns_of_blanks(self._blanks, self._column)
        if self._column and self._column + blanks + self._word_columns > self._edge:
            self._write("\n")
            self._column = blanks = 0
        else:
            self._write(self._blanks)
        self._write(self._word)
        self._column += blanks + self._word_columns
        self._word, self._word_columns, self._blanks = "", 0, ""

    def _end_line(self) -> None:
        self._append_word()
        if self._line.startswith(_FENCES):
            self._code = not self._code
        self._write("\n")
        self._blanks, self._column, self._line = "", 0, ""


def _columns_of_blanks(blanks: str, column: int) -> int:
    at = column
    for blank in blanks:
        at += _TAB - at % _TAB if blank == "\t" else 1
    return at - column


#: Why an answer ended before the model ended it.
_ENDS = {"length": "stopped at --max-tokens", "context": "the context is full", "stopped": "stopped"}
_ERASE_LINE = "\r\x1b[K"
#: Shorter prompts are read before anybody can read how far it is.
_LONG_PROMPT = 200


class ReadingLine:
    """One line on stderr, ``reading 1,024 of 2,830``, while a prompt is read; it goes when the answer begins.

    Shown on a terminal only, and only for prompts that take a while. A context manager.
    """

    def __init__(self, silent: bool) -> None:
        self._on = not silent and sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def update(self, done: int, total: int) -> None:
        """Show how many tokens of how many are read."""
        if self._on and done < total and total > _LONG_PROMPT:
            self._shown = True
            print(f"{_ERASE_LINE}reading {done:,} of {total:,}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
            self._shown = False


def show(answer: Generation, silent: bool) -> dict[str, Any]:
    """Print the pieces as they come, unless silent; return the result. An answer that is cut short ends its line.

    A terminal gets whole words on a line, and control characters written out: a model may have learned to move its
    cursor, or to fill its clipboard. A pipe gets the text as it is.
    """
    last = ""
    wrapper = WordWrapper(_print, _terminal_columns) if sys.stdout.isatty() else None
    with ReadingLine(silent) as reading:
        answer.on_read = reading.update
        try:
            for piece in answer:
                reading.clear()
                if silent:
                    continue
                if wrapper is not None:
                    wrapper.push(printable(piece))
                    sys.stdout.flush()
                else:
                    print(piece, end="", flush=True)
                last = piece or last
        finally:
            if last and not silent:
                if wrapper is not None:
                    wrapper.finish()
                print(end="" if last.endswith("\n") else "\n", flush=True)
    return answer.result


def _print(text: str) -> None:
    print(text, end="")


def _terminal_columns() -> int:
    return shutil.get_terminal_size().columns


def summary(result: dict[str, Any]) -> str:
    """``58 tokens · 24.1 tokens/s · first after 0.6 s``."""
    tokens = len(result["tokens"])
    rate = result["decode_tokens_per_second"]
    parts = [f"{tokens} {'token' if tokens == 1 else 'tokens'}"]
    if rate:
        parts.append(f"{rate:.1f} tokens/s")
    parts.append(f"first after {result['first_token_seconds']:.1f} s")
    if result["simulated"]:
        parts.append("simulated: the times are not the card's")
    return " · ".join([*parts, *filter(None, [early_end(result)])])


def early_end(result: dict[str, Any]) -> str:
    """Say why an answer ended before the model ended it; empty where it did not."""
    return _ENDS.get(result["stop_reason"], "")


def is_simulated(loaded: Model) -> bool:
    """Return whether a device of the plan is simulated, so that times say nothing of it."""
    used = {placement.device for placement in loaded.plan.placements}
    return any(not device.real for device in loaded.devices if device.id in used)


def step_line(step: StepDown) -> str:
    """Return one step down as one line."""
    return f"{step.op} on {step.device}: {step.rung} → {step.to}, {step.step}: {step.reason}"
