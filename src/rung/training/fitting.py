"""Find out whether a training fits: with gradient checkpointing or without, and in how small micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rung import formats
from rung.core.errors import DoesNotFit
from rung.core.text import quoted, size
from rung.core.types import Device, MemoryUse, Placement, PlanFrame, Verdict
from rung.models.card import ModelCard
from rung.models.lookup import name_of
from rung.planning.network_spec import Subject
from rung.planning.training import adapter_weights, training_use
from rung.planning.weight_plan import Weight, compute_dtype, plan_weights

#: Formats that hold weights as they are computed with; for the others the layers are quantized.
PLAIN = ("f32", "bf16", "f16")
#: In place of a format: what a folder holds quantized stays as it is.
STORED = "stored"


@dataclass(frozen=True)
class Fit(PlanFrame):
    """How a model is trained on a device: ``dtype`` is what it computes in, ``batch`` rows at a time and
    ``accumulate`` of those make a step; ``without`` are the bytes without checkpointing."""

    device: Device
    dtype: str
    checkpointing: bool
    batch: int
    accumulate: int
    use: MemoryUse
    budget: int
    without: int
    speeds = ()
    choices = ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Its device."""
        return (Placement(self.device.id, 0, 0, self.use, self.budget),)

    @property
    def verdict(self) -> Verdict:
        """Return whether the memory is within the budget."""
        return self.within_budget()

    @property
    def words(self) -> str:
        """One line."""
        how = (
            f"with gradient checkpointing ({size(self.without)} without)" if self.checkpointing else "every layer kept"
        )
        rows = f"{self.batch} x {self.accumulate} rows a step" if self.accumulate > 1 else f"{self.batch} rows a step"
        return f"{self.device.name} · {self.memory_words()} · {how} · {rows} · {self.dtype}"


def fit(
    card: ModelCard, device: Device, format: str, *, rank: int, batch: int, accumulate: int, length: int, budget: int
) -> Fit:
    """The way that needs no recomputing if it fits, else with checkpointing, else in smaller micro-batches with the
    same rows a step, and so the same result.

    ``length`` is that of the longest row in tokens. Raises ``DoesNotFit`` with what would.
    """
    dtype = compute_dtype(device, lossless=format == "f32")
    weights, subject = _weights(card, device, format, dtype), Subject.of_card(card)

    def use(rows: int, checkpointing: bool) -> MemoryUse:
        return _use(weights, subject, device, rank, length, rows, checkpointing)

    without = use(batch, False).total
    for rows in (rows for rows in range(batch, 0, -1) if batch % rows == 0):
        for checkpointing in (False, True):
            need = use(rows, checkpointing)
            if need.most <= budget:
                return Fit(device, dtype, checkpointing, rows, accumulate * batch // rows, need, budget, without)
    need = use(1, True)
    shorter = length
    while shorter > 64 and training_most(weights, subject, device, rank, shorter) > budget:
        shorter //= 2
    ways = [f"--max-length {shorter}"] if training_most(weights, subject, device, rank, shorter) <= budget else []
    raise DoesNotFit(
        f"Training {card.name} needs {size(need.most)} on {device.name}, which has {size(budget)}.",
        [f"that is one row of {length:,} tokens at a time, with gradient checkpointing and rank {rank}"],
        [
            *ways,
            "a smaller model",
            f"rung check {quoted(name_of(card.path))} --training lora   # says where it would fit",
        ],
    )


def training_most(weights: Sequence[Weight], subject: Subject, device: Device, rank: int, length: int) -> int:
    """The bytes that one row of so many tokens takes at the most, with checkpointing."""
    return _use(weights, subject, device, rank, length, 1, True).most


def _use(
    weights: Sequence[Weight], subject: Subject, device: Device, rank: int, length: int, rows: int, checkpointing: bool
) -> MemoryUse:
    use = training_use(
        weights,
        subject,
        device,
        way="lora",
        optimizer="adamw",
        rank=rank,
        batch=rows,
        sequence=length,
        checkpointing=checkpointing,
    )
    before = 4 * adapter_weights(weights, rank)  # the adapter of before the last step, for when the loss is no number
    return replace(use, optimizer=use.optimizer + before)


def _weights(card: ModelCard, device: Device, format: str, dtype: str) -> tuple[Weight, ...]:
    """The weights as transformers holds them: linears in the format, embedding, head and norms in what is computed; of
    a quantized folder those that are stored so."""
    plain, requested = formats.get(dtype), None if format == STORED else formats.get(format)

    def as_trained(weight: Weight) -> Weight:
        linear = weight.multiplies and weight.tensor.role not in ("embed", "head")
        kept = weight.tensor.source is not None if requested is None else linear and format not in PLAIN
        if kept:
            return weight
        return replace(weight, format=plain, bytes=plain.bytes((1, weight.count)))

    return tuple(map(as_trained, plan_weights(Subject.of_card(card), requested, device, dtype, packed=False)))
