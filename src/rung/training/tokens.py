"""From rows to token ids and labels: the loss is on answers alone (``messages``), or on everything (``text``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from rung.core.errors import BadFile, UsageError
from rung.core.text import count
from rung.training.data import Dropped, Message, Row

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
    made: list[dict[str, list[int]]] = []
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
        made.append({"input_ids": ids, "labels": labels})
        longer += full > max_length
        answers += bool(row.messages)
        texts += not row.messages
    if not made:
        ways = [f"--max-length {min(whole)}   # the shortest row is that long"] if whole else []
        raise BadFile("No row is left to train on.", dropped.sentences(), ways, code="input-empty")
    return Encoded(made, tuple(_notes(made, answers, texts, longer, max_length)))


def _notes(made: list[dict[str, list[int]]], answers: int, texts: int, longer: int, max_length: int) -> list[str]:
    learned = sum(label != IGNORED for row in made for label in row["labels"])
    total = sum(len(row["input_ids"]) for row in made)
    notes = [f"{count(len(made), 'row')}, {count(total, 'token')}, {learned:,} of them learned"]
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
