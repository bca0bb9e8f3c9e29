"""From hidden states of tokens to embeddings of texts, and what is wrong with what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rung.core.errors import ContextTooLong, UsageError
from rung.core.text import count
from rung.engine.decoder import check_ids
from rung.formats.codec import Floats
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard

#: How the states of a text's tokens become one embedding.
POOLINGS = ("mean", "cls", "last")


def check_pooling(pooling: Any, known: Sequence[str] = POOLINGS) -> str:
    """Return the pooling. Raises ``UsageError`` for one that the model has not."""
    if pooling not in known:
        raise UsageError(f"There is no pooling {pooling!r}.", [f"known: {', '.join(known)}"])
    return str(pooling)


def ids_of(texts: Any, encode: Callable[[list[str]], list[list[int]]], vocabulary: int) -> list[list[int]]:
    """Return the ids of each text, which ``encode`` gives; token ids stay as they are, checked.

    Raises ``UsageError`` for what is no sequence of texts or token ids, and for ids that the vocabulary has not.
    """
    if isinstance(texts, str):
        raise UsageError("embed takes a list of texts, and this is one text.", (), ["model.embed([text])"])
    if not isinstance(texts, Sequence) or not all(map(_is_text_or_ids, texts)):
        raise UsageError("embed takes a list of texts.", (), ['model.embed(["a text", "another"])'])
    encoded = iter(encode([each for each in texts if isinstance(each, str)]))
    found = []
    for each in texts:
        if isinstance(each, str):
            found.append(next(encoded))
        else:
            check_ids(each, vocabulary)
            found.append(list(each))
    return found


def _is_text_or_ids(value: Any) -> bool:
    is_ids = isinstance(value, Sequence) and not isinstance(value, bytes)
    return isinstance(value, str) or (is_ids and all(isinstance(each, int) for each in value))


def within(
    ids: list[list[int]],
    card: ModelCard | EncoderCard,
    context: int,
    around: int,
    truncate: bool,
    most: int = 0,
) -> list[list[int]]:
    """Return the ids of texts as they are, or cut to ``most`` (0: the context) tokens with ``truncate``.

    Of ``around`` special tokens the last stays at the end. Raises ``ContextTooLong`` for a text beyond the context.
    """
    if truncate:
        return [_cut(each, min(most or context, context), around) for each in ids]
    if too_many := max((len(each) for each in ids if len(each) > context), default=0):
        raise _too_long(card, too_many, context)
    return ids


def _cut(ids: list[int], most: int, around: int) -> list[int]:
    if len(ids) <= most:
        return ids
    return ids[:most] if around < 2 or most < 2 else [*ids[: most - 1], ids[-1]]


def _too_long(card: ModelCard | EncoderCard, tokens: int, context: int) -> ContextTooLong:
    """Return the error for a text of so many tokens."""
    wider = [f"rung.load(..., context={card.context})"] if card.context > context else []
    return ContextTooLong(
        f"A text has {count(tokens, 'token')}, the context holds {context:,}.",
        [f"{card.name} holds {card.context:,} at the most"] if card.context else [],
        ["model.embed(texts, truncate=True)", *wider, "shorter texts"],
    )


def normalized(embeddings: Floats) -> Floats:
    """Return embeddings [texts, hidden] of length 1; one of zeros stays so."""
    scaled: Floats = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), np.float32(1e-12))
    return scaled


def pool(hidden: Floats, lengths: Sequence[int], pooling: str) -> Floats:
    """Return f32 [texts, hidden] of hidden states [tokens, hidden], whose rows belong to texts of these lengths."""
    counts = np.asarray(lengths, np.int64)
    ends = np.cumsum(counts)
    if pooling == "cls":
        found: Floats = hidden[ends - counts]
    elif pooling == "last":
        found = hidden[ends - 1]
    else:
        found = np.add.reduceat(hidden, ends - counts, axis=0)
        found /= counts.astype(np.float32)[:, None]
    return found
