"""Rows of a JSONL file to train on: conversations (``messages``) or texts (``text``); unusable ones are counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, ModelNotFound
from rung.core.text import count

_ROLES = ("system", "developer", "user", "assistant", "tool")
#: JSON can spell one half of a character that UTF-16 writes as two; no text has such.
_HALVES = "half a character (an escape \\ud800 ... \\udfff alone)"
#: Lines that are named for each kind of trouble.
_NAMED = 5
_SHAPES = (
    '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}',
    '{"text": "..."}',
)

Message = Mapping[str, str]


@dataclass
class Dropped:
    """Rows that are not trained on, by reason: how many, and the numbers of the first lines."""

    reasons: dict[str, list[int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, line: int) -> None:
        """Counts one more."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        lines = self.reasons.setdefault(reason, [])
        if len(lines) < _NAMED:
            lines.append(line)

    def sentences(self) -> list[str]:
        """``3 rows left out: not JSON (line 2, 5, 9)``, one for each reason."""
        return [
            f"{count(self.counts[reason], 'row')} left out: {reason} (line {', '.join(map(str, lines))}"
            f"{' ...' if self.counts[reason] > len(lines) else ''})"
            for reason, lines in self.reasons.items()
        ]


@dataclass(frozen=True)
class Row:
    """One row: its line in the file, counted from 1, and either messages or a text."""

    line: int
    messages: tuple[Message, ...] = ()
    text: str = ""


def read_rows(path: Path) -> tuple[list[Row], Dropped]:
    """The usable rows of a JSONL file, and what was left out.

    Raises ``ModelNotFound`` for no file, and ``BadFile`` when it cannot be read or no row can be used.
    """
    if not path.is_file():
        raise ModelNotFound(
            f"There is no file {path}",
            ["DATA is a JSONL file, one row a line"],
            [f"a row:  {_SHAPES[0]}"],
            code="path-unknown",
        )
    try:
        with open(path, "rb") as file:
            rows, dropped = _rows(file)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error
    if not rows:
        raise BadFile(
            f"{path.name} has no row to train on.",
            dropped.sentences() or ["the file is empty"],
            [f"write rows like  {shape}" for shape in _SHAPES],
            code="input-empty",
        )
    return rows, dropped


def _rows(lines: Iterable[bytes]) -> tuple[list[Row], Dropped]:
    rows, dropped = [], Dropped()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            dropped.add("not UTF-8", number)
            continue
        except (ValueError, RecursionError):
            dropped.add("not JSON", number)
            continue
        row = _row(value, number)
        if isinstance(row, str):
            dropped.add(row, number)
        else:
            rows.append(row)
    return rows, dropped


def _row(value: Any, number: int) -> Row | str:
    """The row, or why there is none."""
    if isinstance(value, list):
        return "a list; each row is an object in a line of its own"
    if not isinstance(value, dict) or not {"messages", "text"} & value.keys():
        return "neither messages nor text"
    if "messages" not in value:
        text = value["text"]
        if not isinstance(text, str) or not text.strip():
            return "empty"
        return Row(number, text=text) if _is_unicode(text) else _HALVES
    messages = value["messages"]
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        return "messages are not a list of role and content"
    if not all(_is_unicode(m["content"]) for m in messages):
        return _HALVES
    answers = [m for m in messages[1:] if m["role"] == "assistant" and m["content"].strip()]
    return Row(number, messages=tuple(messages)) if answers else "no answer of an assistant"


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in _ROLES and isinstance(value.get("content"), str)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
