"""Words that are wrapped at the edge of a terminal while they stream."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

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
    A word is held back until the character after it is known. Between fences (```) lines are left alone. Wide
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
        """Show the word that was held back."""
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
