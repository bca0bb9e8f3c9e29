"""Rows of a JSONL file to train on: conversations (``messages``) or texts (``text``); unusable ones are counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rung.core.errors import BadFile, ModelNotFound, UsageError
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


#: What PyTorch's losses leave out.
IGNORED = -100


@dataclass(frozen=True)
class Encoded:
    """Rows as ``input_ids`` and ``labels``, and what a person should know of them."""

    rows: list[dict[str, list[int]]]
    notes: tuple[str, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row["input_ids"]) for row in self.rows)


def encode_rows(rows: Sequence[Row], tokenizer: Any, max_length: int, dropped: Dropped) -> Encoded:
    """Every row as token ids, cut to ``max_length``, with labels of ``IGNORED`` where there is no loss.

    ``tokenizer`` is one of transformers. Rows of which nothing is left to learn are added to ``dropped``. Raises
    ``UsageError`` for messages without a chat template, ``BadFile`` when no row is left.
    """
    if any(row.messages for row in rows) and not tokenizer.chat_template:
        raise UsageError(
            "The data has messages, and the model has no chat template that says how to write them.",
            (),
            ['write rows like  {"text": "..."}', "take the chat version of the model, whose folder has a template"],
            code="chat-template-missing",
        )
    encoded: list[dict[str, list[int]]] = []
    longer, answers, texts = 0, 0, 0
    whole: list[int] = []  # tokens of rows that are too long to be learned from
    for row in rows:
        try:
            ids, labels = _conversation(row.messages, tokenizer) if row.messages else _text(row.text, tokenizer)
        except TemplateError as error:  # a role or an order that it does not know
            dropped.add(f"the chat template refuses it: {str(error)[:100]}", row.line)
            continue
        if not ids:
            dropped.add("the chat template does not show where answers begin", row.line)
            continue
        full = len(ids)
        ids, labels = ids[:max_length], labels[:max_length]
        if all(label == IGNORED for label in labels[1:]):
            whole.append(full)
            dropped.add(f"nothing to learn in its first {max_length:,} tokens", row.line)
            continue
        encoded.append({"input_ids": ids, "labels": labels})
        longer += full > max_length
        answers += bool(row.messages)
        texts += not row.messages
    if not encoded:
        ways = [f"--max-length {min(whole)}   # the shortest row is that long"] if whole else []
        raise BadFile("No row is left to train on.", dropped.sentences(), ways, code="input-empty")
    return Encoded(encoded, tuple(_notes(encoded, answers, texts, longer, max_length)))


def _notes(rows: list[dict[str, list[int]]], answers: int, texts: int, longer: int, max_length: int) -> list[str]:
    learned = sum(label != IGNORED for row in rows for label in row["labels"])
    total = sum(len(row["input_ids"]) for row in rows)
    notes = [f"{count(len(rows), 'row')}, {count(total, 'token')}, {learned:,} of them learned"]
    if answers:
        notes.append(f"{count(answers, 'conversation')}: loss on the answers of the assistant alone")
    if texts:
        notes.append(f"{count(texts, 'text')}: loss on every token")
    if longer:
        notes.append(f"{count(longer, 'row')} cut to {max_length:,} tokens:  --max-length keeps more")
    return notes


def _text(text: str, tokenizer: Any) -> tuple[list[int], list[int]]:
    ids = list(tokenizer(text).input_ids)
    if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
        ids.append(tokenizer.eos_token_id)
    return ids, list(ids)


def _conversation(messages: Sequence[Message], tokenizer: Any) -> tuple[list[int], list[int]]:
    """ids and labels; nothing where what stands before an answer is not what the template writes for it alone.

    What an assistant says before anybody else is no answer, and is not learned: templates write no empty conversation.
    """

    def render(part: Sequence[Message], answer: bool) -> str:
        text: str = tokenizer.apply_chat_template(list(part), tokenize=False, add_generation_prompt=answer)
        return text

    whole = render(messages, False)
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index == 0:
            continue
        before, after = render(messages[:index], True), render(messages[: index + 1], False)
        if not (whole.startswith(before) and whole.startswith(after)):
            return [], []
        spans.append((len(before), len(after)))
    found = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    inside = [any(first <= start and end <= last for first, last in spans) for start, end in found.offset_mapping]
    ids = list(found.input_ids)
    return ids, [token if learned else IGNORED for token, learned in zip(ids, inside, strict=True)]
