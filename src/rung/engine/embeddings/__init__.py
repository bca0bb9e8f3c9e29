"""Embeddings of texts: from encoders, and from the hidden states of decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rung.core.errors import ContextTooLong, DeviceError, UsageError
from rung.core.text import count
from rung.engine.decoder import check_ids
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import StateSequence
from rung.formats.codec import Floats
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.pooling import Pooling, pooling_of_folder, pooling_of_gguf
from rung.models.settings import Settings

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


#: Poolings of decoders: the first token of a text sees nothing of it.
DECODER_POOLINGS = ("mean", "last")
#: Texts for each sequence that is computed which wait for room.
_QUEUE = 2


def pooling_of(card: ModelCard) -> Pooling:
    """Return the pooling that the files state. Raises ``UnknownArchitecture`` for models without embeddings."""
    if card.kind == "gguf":
        kind = card.metadata.get("general.architecture")
        return pooling_of_gguf(Settings(card.metadata, card.name, f"{kind}."))
    return pooling_of_folder(Path(card.path))


def embed(scheduler: Scheduler, ids: list[list[int]], hidden: int, pooling: str) -> Floats:
    """Return the embeddings [texts, hidden] f32 of token ids, computed together with whatever else is computed.

    Raises ``DeviceError`` for one that is no numbers, and what a step raises.
    """
    found = np.empty((len(ids), hidden), np.float32)
    sequences = [StateSequence(each, hidden, pooling) for each in ids]
    _compute(scheduler, iter(sequences))
    for number, each in enumerate(sequences):
        if each.error is not None:
            raise each.error
        if not np.isfinite(each.embedding).all():
            raise DeviceError(f"The embedding of text {number + 1} is no numbers.", ["the weights may be damaged"])
        found[number] = each.embedding
    return found


def _compute(scheduler: Scheduler, left: Iterable[StateSequence]) -> None:
    """Compute sequences to their ends, a few more at a time than there is room for."""
    following, live, most = iter(left), list[StateSequence](), _QUEUE * scheduler.parallel
    try:
        while True:
            while len(live) < most and (each := next(following, None)) is not None:
                live.append(each)
                scheduler.add(each)
            if not live:
                return
            scheduler.advance(*live)
            for each in [each for each in live if each.ended]:
                scheduler.cancel(each)
                live.remove(each)
    finally:
        for each in live:
            scheduler.cancel(each)


def check_empty(name: str, ids: list[list[int]]) -> None:
    """Raise ``UsageError`` for texts without a token, which have no state."""
    if (number := next((number for number, each in enumerate(ids) if not each), None)) is not None:
        raise UsageError(f"Text {number + 1} is empty, and {name} puts nothing around a text.", (), ["leave it out"])
