"""What would make an impossible plan possible: the smallest changes, each as a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rung import formats
from rung.core.errors import DoesNotFit
from rung.core.text import size
from rung.core.types import Device
from rung.models.card import ModelCard
from rung.planning.arrange import Arrangement, arrange
from rung.planning.request import Request

_SMALLER = ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0")
_STEP = 64


def does_not_fit(
    card: ModelCard, devices: Sequence[Device], request: Request, tried: Sequence[Arrangement], context: int
) -> DoesNotFit:
    """The error that says by how much it does not fit, and which smallest changes would do."""
    refused = [w for a in tried for w in a.weights if not w.rung]
    closest = min(tried, key=lambda a: a.over)
    tight = max(closest.placements, key=lambda p: p.memory.total - p.budget)
    facts = [
        f"closest: {closest.format.name if closest.format else 'as stored'} on {tight.device}, "
        f"{size(tight.memory.total)} with {context:,} tokens; the budget there is {size(tight.budget)}",
        f"weights {size(tight.memory.weights)}, cache {size(tight.memory.kv_cache)}, "
        f"the rest {size(tight.memory.total - tight.memory.weights - tight.memory.kv_cache)}",
    ]
    if refused:
        facts.append(f"{refused[0].tensor.name}: {refused[0].reason}")
    ways = [*_less_context(card, devices, request, context), *_smaller_format(card, devices, request, context, closest)]
    needed = min(p.memory.total for a in tried for p in a.placements[:1] if len(a.placements) == 1)
    ways.append(f"a device or budget of {-(-needed // (1 << 20)) / 1024:.1f} GB: --memory {_rounded_up(needed)}")
    return DoesNotFit(f"{card.name} does not fit.", facts, ways)


def _rounded_up(count: int) -> str:
    return f"{(count * 10 // 2**30 + 1) / 10:.1f}GB"


def _fits(card: ModelCard, name: str | None, devices: Sequence[Device], request: Request, context: int) -> bool:
    format = formats.get(name) if name else None
    groups = [(device,) for device in devices] + ([tuple(devices)] if len(devices) > 1 else [])
    return any(
        arrange(card, format, group, request, context, packed).over <= 0 for group in groups for packed in (True, False)
    )


def _less_context(card: ModelCard, devices: Sequence[Device], request: Request, context: int) -> list[str]:
    """The largest context, in steps, that fits in the formats asked for."""
    name = None if card.kind == "gguf" else request.format or _SMALLER[-1]
    low, high = 0, context // _STEP
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(card, name, devices, request, middle * _STEP):
            low = middle
        else:
            high = middle - 1
    if not low:
        return []
    chosen = "" if name is None else f" --format {name}"
    return [f"rung run {card.path} --context {low * _STEP}{chosen}"]


def _smaller_format(
    card: ModelCard, devices: Sequence[Device], request: Request, context: int, closest: Arrangement
) -> list[str]:
    """The finest format smaller than what was tried that fits the whole context."""
    stored = sum(w.bytes for w in closest.weights)
    plain = replace(request, format=None)
    for name in _SMALLER:
        smaller = formats.get(name).bits * card.parameters / 8 < stored
        if name != request.format and smaller and _fits(card, name, devices, plain, context):
            return [f"rung run {card.path} --format {name}"]
    return []
