"""What would make an impossible plan possible: the smallest changes, each as a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from rung.core.errors import DoesNotFit
from rung.core.text import quoted, size, tenths
from rung.core.types import Device
from rung.hardware.select import Group
from rung.planning.check_result import Question, Relaxation
from rung.planning.gguf_mixtures import Mixture, storage
from rung.planning.placement import Arrangement, arrange
from rung.planning.request import Request
from rung.planning.weight_plan import Storage, storage_name
from rung.planning.weight_plan_cache import Kitchen

_SMALLER = ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k_m", "q3_k_s")
#: The format of an unquantised folder for which the largest context is named.
_COARSE = "q4_0"
#: Contexts to try in a smaller format where neither alone is enough.
_CONTEXTS = (2048, 1024)
_STEP = 64
Groups = Sequence[Sequence[Device]]


def does_not_fit(
    kitchen: Kitchen,
    devices: Sequence[Device],
    request: Request,
    tried: Sequence[Arrangement],
    context: int,
    others: Sequence[Device] = (),
) -> DoesNotFit:
    """The error that says by how much it does not fit, and which smallest changes would do; ``others`` are devices that
    were not asked for, and could hold layers beside those that were."""
    refused = [a.recipe.refused for a in tried if a.recipe.refused]
    closest = min(tried, key=lambda a: a.over)
    tight = max(closest.placements, key=lambda p: p.memory.most - p.budget)
    facts = [
        f"closest: {closest.name if closest.storage else 'as stored'} on {tight.device}, "
        f"{size(tight.memory.most)} with {context:,} tokens; the budget there is {size(tight.budget)}",
        f"weights {size(tight.memory.weights)}, cache {size(tight.memory.kv_cache)}, "
        f"the rest {size(tight.memory.most - tight.memory.weights - tight.memory.kv_cache)}",
    ]
    if refused:
        facts.append(f"{refused[0].tensor.name}: {refused[0].reason}")
    groups = groups_of(devices)
    ways = [
        *less_context(kitchen, groups, request, context),
        *smaller_format(kitchen, groups, request, context, closest),
    ]
    ways = ways or _smaller_and_shorter(kitchen, groups, request, context)
    ways += _beside(kitchen, [*devices, *others], request, context) if others else []
    ways.append(more_memory(kitchen, devices, request, tried))
    return DoesNotFit(f"{kitchen.subject.name} does not fit.", facts, ways)


def groups_of(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Each device alone, and all together."""
    return [(device,) for device in devices] + ([tuple(devices)] if len(devices) > 1 else [])


def _command(kitchen: Kitchen, request: Request, **changed: str | int | None) -> str:
    """The command that asks the same with something changed; None takes an option away."""
    asked = {"format": request.format, "device": request.device, "context": request.context}
    memory = {"memory": ",".join(_budget(name, count) for name, count in request.memory.items()) or None}
    options = {name: value for name, value in (asked | memory | changed).items() if value is not None}
    return " ".join(
        [f"rung run {quoted(kitchen.subject.path)}", *(f"--{name} {value}" for name, value in options.items())]
    )


def _budget(device: str, count: int) -> str:
    """A budget as ``--memory`` takes it, exactly: ``4.6GB``, ``cpu=300MB``."""
    short = round(count / 2**30, 1)
    exact = int(short * 2**30) == count
    text = f"{short}GB" if exact else f"{count // 2**20}MB" if count % 2**20 == 0 else str(count)
    return text if device == "*" else f"{device}={text}"


def more_memory(kitchen: Kitchen, devices: Sequence[Device], request: Request, tried: Sequence[Arrangement]) -> str:
    """The least budget that holds the model on one device; another device where none here has so much."""
    alone = sorted((a.placements[0].memory.most, a.placements[0].device) for a in tried if len(a.placements) == 1)
    free = {device.id: device.budget for device in devices}
    for needed, device in alone:
        if tenths(needed) * 2**30 <= free[device]:
            return _command(kitchen, request, memory=f"{tenths(needed)}GB")
    return f"a device with {tenths(alone[0][0])} GB free"


def _fits(kitchen: Kitchen, format: Storage, groups: Groups, request: Request, context: int) -> bool:
    return any(
        arrange(kitchen, format, group, request, context, packed).over <= 0
        for group in groups
        for packed in ((True,) if kitchen.subject.borrowed else (True, False))
    )


def less_context(kitchen: Kitchen, groups: Groups, request: Request, context: int) -> list[str]:
    """The command with the largest context, in steps, that fits in the format asked for; none where no context does."""
    name = request.format or (None if kitchen.subject.keeps else _COARSE)
    format = storage(name) if name and name != "stored" else None
    low, high = 0, (context - 1) // _STEP
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(kitchen, format, groups, request, middle * _STEP):
            low = middle
        else:
            high = middle - 1
    return [_command(kitchen, request, format=name, context=low * _STEP)] if low else []


def smaller_format(kitchen: Kitchen, groups: Groups, request: Request, context: int, closest: Arrangement) -> list[str]:
    """The command with the finest format smaller than what was tried that fits the whole context."""
    stored = sum(w.bytes for w in closest.weights)
    for name in _SMALLER:
        format = storage(name)
        smaller = _bits(format) * kitchen.subject.parameters / 8 < stored
        if name != request.format and smaller and _fits(kitchen, format, groups, request, context):
            return [_command(kitchen, request, format=name)]
    return []


def _bits(format: Storage) -> float:
    """Bits of most weights."""
    return format.base.bits if isinstance(format, Mixture) else format.bits if format is not None else 0.0


def _smaller_and_shorter(kitchen: Kitchen, groups: Groups, request: Request, context: int) -> list[str]:
    """The command with a smaller format and a shorter context, where neither alone is enough."""
    for shorter in (each for each in _CONTEXTS if each < context):
        for name in _SMALLER:
            if _fits(kitchen, storage(name), groups, request, shorter):
                return [_command(kitchen, request, format=name, context=shorter)]
    return []


def _beside(kitchen: Kitchen, devices: Sequence[Device], request: Request, context: int) -> list[str]:
    """The command that lets the other devices here hold layers too, where that is enough."""
    name = request.format or (None if kitchen.subject.keeps else _COARSE)
    format = storage(name) if name and name != "stored" else None
    together = [(device,) for device in devices] if kitchen.subject.borrowed else groups_of(devices)
    free = replace(request, device=None)
    return [_command(kitchen, free, format=name)] if _fits(kitchen, format, together, free, context) else []


def other_training(
    path: str, asked: Question, groups: Sequence[Group], fitting: Callable[[Question, Sequence[Group]], Group | None]
) -> list[Relaxation]:
    """Ways of training that fit where the one that was asked for does not, the least different first.

    ``fitting`` finds the first of some devices on which a question has a yes.
    """
    alone = [(device,) for group in groups for device in group]
    if alone != list(groups) and (group := fitting(asked, alone)) is not None:
        return [Relaxation("one device by itself", _check_command(path, asked, group))]
    lora = replace(asked, training="lora", optimizer=None, formats=())
    ways = {
        "one sequence at a time": replace(asked, batch=1),
        "an optimiser with 8-bit state": replace(asked, optimizer="adamw8bit"),
        "another format": replace(asked, formats=()),
        "another format, one sequence at a time": replace(asked, formats=(), batch=1),
        "adapters": lora,
        "adapters, one sequence at a time": replace(lora, batch=1),
    }
    found: dict[Question, Relaxation] = {}
    for words, question in ways.items():
        if question in (asked, *found) or (", " in words and found):
            continue
        if (group := fitting(question, alone)) is not None:
            found[question] = Relaxation(words, _check_command(path, question, group))
    return list(found.values())


def _name(format: str) -> str:
    return format if format == "stored" else storage_name(storage(format))


def _check_command(path: str, question: Question, group: Group) -> str:
    options = {
        "device": "+".join(device.id if device.real else device.name for device in group),
        "training": question.training,
        "optimizer": question.optimizer,
        "rank": question.rank,
        "sequence": question.sequence,
        "batch": question.batch if question.batch > 1 else None,
    }
    given = [word for name, value in options.items() if value for word in (f"--{name}", str(value))]
    formats = [word for name in question.formats for word in ("--format", _name(name))]
    return shlex.join(["rung", "check", path, *given, *formats])
