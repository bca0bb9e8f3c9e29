"""An encoder of texts: its parts read from the files of a model, bound, and texts to embeddings with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from rung import formats
from rung.core.errors import UsageError
from rung.core.text import quoted, size
from rung.core.types import Case, Device, Placement, Plan, Report
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.engine.embeddings import check_pooling, ids_of, normalized, pool, within
from rung.engine.model import Model
from rung.engine.tokenizers.word_piece import TextTokenizer
from rung.engine.weight_loader import WeightLoader
from rung.formats.codec import Floats
from rung.formats.stacking import stacked_format
from rung.models.card import Encoder
from rung.models.cards.encoder import EncoderCard
from rung.models.decoder_memory import CHUNK
from rung.models.lookup import name_of
from rung.ops.encoder.weights import EncoderWeights
from rung.planning.network_spec import is_table
from rung.planning.weight_plan import Weight, encoder_case
from rung.run.binding import Binder
from rung.run.journal import Journal
from rung.run.torch_device import torch_name

#: Rows of a linear: few and many.
_ROWS = (1, 256)


class EncoderLoader(WeightLoader):
    """See ``rung.ops.encoder.weights.EncoderParts``."""

    @property
    def _encoder(self) -> Encoder:
        assert isinstance(self.card, EncoderCard)
        return self.card.encoder

    @property
    def device_name(self) -> str:
        """torch's name of where everything computes."""
        return torch_name(self.plan.placements[0].device)

    def table(self, role: str) -> Floats:
        """The rows of ``positions`` or ``types`` in the format of the plan, f32."""
        weights = self._weights[self.plan.placements[0].device]
        tensor = self.card.tensor(role)
        return formats.decode(formats.convert(self._reader.read(tensor), weights[role].format, tensor.name, 1))

    def holds(self, role: str) -> bool:
        """Return whether the model has that tensor, or one is made of others."""
        return role in self._linears or super().holds(role)

    def _stacks(self, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Let q, k and v of a layer be one weight where they are packed alike: a product of more rows takes less."""
        weights = self._weights[self.plan.placements[0].device]
        found: dict[str, tuple[str, ...]] = {}
        for role in roles:
            layer = role.rpartition(".")[0]
            several = tuple(f"{layer}.{each}" for each in "qkv")
            if role not in several or not set(several) <= set(roles):
                found[role] = (role,)
                continue
            whole = stacked_format([(weights[each].format, weights[each].tensor.shape) for each in several])
            if whole == weights[role].format and all(weights[each].packing == "r16" for each in several):
                found[f"{layer}.qkv"] = several
            else:
                found[role] = (role,)
        return found

    def encode(self) -> Encode:
        """Texts, once every linear is bound."""
        return Encode(self._binders[self.plan.placements[0].device], encoder_case(self._encoder))

    def _cases(self, weights: Sequence[Weight], placement: Placement, dtype: str) -> Iterator[Case]:
        for weight in weights:
            if weight.tensor.role == "embed":
                yield Case("embedding", weight.format.name, dtype, (1, *weight.tensor.shape))
            elif weight.multiplies and not is_table(weight.tensor.role):
                for count in _ROWS:
                    yield Case("linear", weight.format.name, dtype, (count, *weight.tensor.shape))

    def _likely_step(self, binder: Binder, cases: Sequence[Case], placement: Placement) -> Iterator[Case]:
        yield encoder_case(self._encoder)


class Encode:
    """Texts on one rung of ``encoder``; see there. Prepared again one rung lower when a call fails."""

    def __init__(self, binder: Binder, case: Case) -> None:
        self._binder, self.case = binder, case
        self._choose()

    def _choose(self) -> None:
        self.rung = self._binder.record(self.case, self._binder.choose(self.case))
        self._implementation = self.rung.load()

    def prepare(self, weights: EncoderWeights, threads: int) -> None:
        """Bind weights."""
        self._bound = (weights, threads)
        self._state: Any = self._implementation.prepare(weights, threads=threads)

    def apply(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Return hidden states [tokens, hidden] of all texts."""
        try:
            hidden: Floats = self._implementation.apply(self._state, texts)
            return hidden
        except Exception as error:
            self._binder.failed(self.rung, self.case, error)
        self._choose()
        self.prepare(*self._bound)
        return self.apply(texts)


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
        measured = self._measured | {"memory_bytes": float(planning.peak_memory())}
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
