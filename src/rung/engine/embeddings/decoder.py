"""Embeddings of decoders: hidden states after the final norm, of the last token of a text or the mean of all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rung.core.errors import DeviceError, UsageError
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import StateSequence
from rung.formats.codec import Floats
from rung.models.card import ModelCard
from rung.models.pooling import Pooling, pooling_of_folder, pooling_of_gguf
from rung.models.settings import Settings

#: Poolings of decoders: the first token of a text sees nothing of it.
POOLINGS = ("mean", "last")
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
