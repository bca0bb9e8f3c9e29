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
    ways = [
        *_less_context(card, devices, request, context),
        *_smaller_format(card, devices, request, context, closest),
        _more_memory(card, devices, request, tried),
    ]
    return DoesNotFit(f"{card.name} does not fit.", facts, ways)


def _command(card: ModelCard, request: Request, **changed: str | int | None) -> str:
    """The command that asks the same with something changed; None takes an option away."""
    asked = {"format": request.format, "device": request.device, "context": request.context}
    memory = {"memory": ",".join(_budget(name, count) for name, count in request.memory.items()) or None}
    options = {name: value for name, value in (asked | memory | changed).items() if value is not None}
    return " ".join([f"rung run {card.path}", *(f"--{name} {value}" for name, value in options.items())])


def _budget(device: str, count: int) -> str:
    """A budget as ``--memory`` takes it, exactly: ``4.6GB``, ``cpu=300MB``."""
    short = round(count / 2**30, 1)
    exact = int(short * 2**30) == count
    text = f"{short}GB" if exact else f"{count // 2**20}MB" if count % 2**20 == 0 else str(count)
    return text if device == "*" else f"{device}={text}"


def _more_memory(card: ModelCard, devices: Sequence[Device], request: Request, tried: Sequence[Arrangement]) -> str:
    """The least budget that holds the model on one device; another device where none here has so much."""
    alone = sorted((a.placements[0].memory.total, a.placements[0].device) for a in tried if len(a.placements) == 1)
    free = {device.id: device.budget for device in devices}
    for needed, device in alone:
        if _tenths(needed) * 2**30 <= free[device]:
            return _command(card, request, memory=f"{_tenths(needed)}GB")
    return f"a device with {_tenths(alone[0][0])} GB free"


def _tenths(count: int) -> float:
    """Bytes as GB, rounded up to a tenth."""
    return (count * 10 // 2**30 + 1) / 10


def _fits(card: ModelCard, name: str | None, devices: Sequence[Device], request: Request, context: int) -> bool:
    format = formats.get(name) if name and name != "stored" else None
    groups = [(device,) for device in devices] + ([tuple(devices)] if len(devices) > 1 else [])
    return any(
        arrange(card, format, group, request, context, packed).over <= 0 for group in groups for packed in (True, False)
    )


def _less_context(card: ModelCard, devices: Sequence[Device], request: Request, context: int) -> list[str]:
    """The largest context, in steps, that fits in the formats asked for."""
    name = request.format or (None if card.kind == "gguf" else _SMALLER[-1])
    low, high = 0, context // _STEP
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(card, name, devices, request, middle * _STEP):
            low = middle
        else:
            high = middle - 1
    if not low:
        return []
    return [_command(card, request, format=name, context=low * _STEP)]


def _smaller_format(
    card: ModelCard, devices: Sequence[Device], request: Request, context: int, closest: Arrangement
) -> list[str]:
    """The finest format smaller than what was tried that fits the whole context."""
    stored = sum(w.bytes for w in closest.weights)
    plain = replace(request, format=None)
    for name in _SMALLER:
        smaller = formats.get(name).bits * card.parameters / 8 < stored
        if name != request.format and smaller and _fits(card, name, devices, plain, context):
            return [_command(card, request, format=name)]
    return []
