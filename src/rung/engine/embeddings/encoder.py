"""A loaded encoder: texts to embeddings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from rung.core.errors import UsageError
from rung.core.text import quoted, size
from rung.core.types import Device, Plan, Report
from rung.core.value import FrozenDict
from rung.engine import process_memory
from rung.engine.embeddings.loader import Encode
from rung.engine.embeddings.pooling import check_pooling, ids_of, normalized, pool, within
from rung.engine.model import Model
from rung.engine.tokenizers.word_piece import TextTokenizer
from rung.formats.codec import Floats
from rung.models.cards.encoder import EncoderCard
from rung.models.decoder_memory import CHUNK
from rung.models.lookup import name_of
from rung.run.journal import Journal


class EncoderModel(Model):
    """An encoder bound to the device of its plan. Made by ``rung.load``.

    What would write text raises ``UsageError``.
    """

    tokenizer: TextTokenizer  # type: ignore[assignment]
    card: EncoderCard  # type: ignore[assignment]

    def __init__(
        self,
        card: EncoderCard,
        plan: Plan,
        devices: tuple[Device, ...],
        encode: Encode,
        journal: Journal,
        tokenizer: TextTokenizer,
    ) -> None:
        self.card = card
        self.plan = plan
        self.devices = devices
        self.tokenizer = tokenizer
        self._step, self._journal = encode, journal
        self._lock = threading.Lock()
        self._measured: dict[str, float] = {}

    def __repr__(self) -> str:
        plan = self.plan
        return f"<EncoderModel {plan.model}: {plan.format} on {plan.placements[0].device}, {size(plan.memory)}>"

    @property
    def report(self) -> Report:
        """Return the report so far: steps down, rungs, predicted beside measured."""
        predicted = {
            "memory_bytes": float(self.plan.memory),
            "prefill_tokens_per_second": self.plan.prefill_rate,
        }
        measured = self._measured | {"memory_bytes": float(process_memory.peak_memory())}
        return self._journal.report(FrozenDict(predicted), FrozenDict(measured))

    def embedding_ids(self, texts: Sequence[str | Sequence[int]]) -> list[list[int]]:
        """Return the ids of texts as ``embed`` reads them; ids are checked. Raises ``UsageError``."""
        return ids_of(texts, self.tokenizer.encode_all, self.card.encoder.vocabulary)

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        pooling: str | None = None,
        normalize: bool | None = None,
        *,
        truncate: bool = False,
    ) -> Floats:
        """Return the embeddings of texts, or of token ids as they are, f32 [texts, hidden]; no texts give [0, hidden].

        ``pooling`` is mean, cls (the first token) or last (the last one); ``normalize`` makes their length 1. Both are
        by default what the model's files say (sentence-transformers' ``modules.json``, GGUF's ``pooling_type``), else
        mean and not. ``truncate`` cuts texts where sentence-transformers does (``max_seq_length``), or at the context.
        Raises ``ContextTooLong`` for a text beyond the context without it, ``UsageError`` for what is no list of
        texts.
        """
        shape = self.card.encoder
        pooling = check_pooling(pooling or shape.pooling)
        ids = self.embedding_ids(texts)
        ids = within(ids, self.card, self.plan.context, self.tokenizer.around, truncate, shape.most_tokens)
        found = np.empty((len(ids), shape.hidden), np.float32)
        with self._lock:
            started = time.perf_counter()
            for indexes in _batches(ids):
                found[indexes] = pool(
                    self._step.apply([ids[index] for index in indexes]), _lengths(ids, indexes), pooling
                )
            seconds = time.perf_counter() - started
        if ids:
            self._measured["prefill_tokens_per_second"] = sum(map(len, ids)) / seconds
        return normalized(found) if (shape.normalize if normalize is None else normalize) else found

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise ``UsageError``: an encoder writes no text."""
        raise UsageError(
            f"{self.card.name} is an encoder: it makes embeddings of texts and writes none.",
            (),
            ["model.embed(texts)", f"rung check {quoted(name_of(self.card.path))}"],
            code="architecture-unsupported",
        )

    generate = chat = start = chat_ids = chat_text = prompt_ids = generate_many = logits = logprobs = _refuse


def _lengths(ids: Sequence[Sequence[int]], indexes: Sequence[int]) -> list[int]:
    return [len(ids[index]) for index in indexes]


def _batches(ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the places of texts that are computed together: up to ``CHUNK`` rows, or one text of more."""
    indexes: list[int] = []
    rows = 0
    for index, text in enumerate(ids):
        if indexes and rows + len(text) > CHUNK:
            yield indexes
            indexes, rows = [], 0
        indexes.append(index)
        rows += len(text)
    if indexes:
        yield indexes
