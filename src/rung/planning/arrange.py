"""Where the layers go: one device, or several when one is too small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rung.core.types import Device, Format, MemoryUse, Placement
from rung.models.card import ModelCard
from rung.planning.memory import memory_use
from rung.planning.recipe import Weight, compute_dtype, recipe
from rung.planning.request import Request
from rung.planning.time import Rates, rates, split_rates


@dataclass(frozen=True)
class Arrangement:
    """One way to hold the model: its weights, layers by device and predicted rates."""

    format: Format | None
    dtype: str
    cache_dtype: str
    packed: bool
    weights: tuple[Weight, ...]
    placements: tuple[Placement, ...]
    rates: Rates

    @property
    def over(self) -> int:
        """Bytes above the budget, over all devices; zero or less when it fits."""
        return max(p.memory.total - p.budget for p in self.placements)


def is_lossless(card: ModelCard, format: Format | None) -> bool:
    """Whether the weights are f32, so that everything is computed in f32."""
    if format is not None:
        return format.name == "f32"
    return all(t.format == "f32" for t in card.tensors if len(t.shape) > 1)


def arrange(
    card: ModelCard, format: Format | None, devices: Sequence[Device], request: Request, context: int, packed: bool
) -> Arrangement:
    """The layers over the devices in their order: each takes as many as its budget holds, the last the rest."""
    layers = len(card.decoder.layers)
    lossless = is_lossless(card, format)
    cache_dtype = "f32" if lossless else "f16"
    dtype = compute_dtype(devices[0], lossless)
    weights = recipe(card, format, devices[0], dtype, packed)
    placements: list[Placement] = []
    parts: list[tuple[Rates, int]] = []
    first = 0
    for index, device in enumerate(devices):
        mine = recipe(card, format, device, compute_dtype(device, lossless), packed) if index else weights
        budget = request.budget(device.id, device.budget)
        last = layers
        use = memory_use(mine, card.decoder, device, first, last, context, cache_dtype)
        if device is not devices[-1]:
            last, use = _most(mine, card, device, first, context, cache_dtype, budget)
        if last > first or device is devices[-1]:
            placements.append(Placement(device.id, first, last, use, budget))
            parts.append((rates(mine, card.decoder, device, context, cache_dtype), last - first))
        first = last
    return Arrangement(
        format, dtype, cache_dtype, packed, weights, tuple(placements), split_rates(parts, max(layers, 1))
    )


def _most(
    weights: tuple[Weight, ...],
    card: ModelCard,
    device: Device,
    first: int,
    context: int,
    cache_dtype: str,
    budget: int,
) -> tuple[int, MemoryUse]:
    """The largest end of a range of layers that fits, by bisection: memory grows with every layer."""
    low, high = first, len(card.decoder.layers)
    while low < high:
        middle = (low + high + 1) // 2
        if memory_use(weights, card.decoder, device, first, middle, context, cache_dtype).total <= budget:
            low = middle
        else:
            high = middle - 1
    return low, memory_use(weights, card.decoder, device, first, low, context, cache_dtype)
