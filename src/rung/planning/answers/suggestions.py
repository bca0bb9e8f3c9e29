"""Hold what would make an impossible plan possible: the smallest changes, each as a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from rung.core.errors import DoesNotFit
from rung.core.text import quoted, size, tenths
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware.select import Group
from rung.models.decoder_memory import IN_BLOCKS
from rung.models.lookup import name_of
from rung.planning.check_result import Question, Relaxation
from rung.planning.gguf_mixtures import Mixture, storage
from rung.planning.placement import Arrangement, arrange, arrangements
from rung.planning.request import Request
from rung.planning.weight_plan import Storage, storage_name
from rung.planning.weight_plan_cache import WeightPlanCache

_SMALLER = ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k_m", "q3_k_s")
#: The format of an unquantized folder for which the largest context is named.
_COARSE = "q4_0"
#: Contexts shorter than this are not tried in the place of the one that was asked for.
_LEAST_CONTEXT = 1024
_STEP = 64
_LEAST_SEQUENCE = 128
#: A shorter context is not chosen by itself: no conversation fits in it.
SMALLEST_CONTEXT = 256
Groups = Sequence[Sequence[Device]]


def contexts(most: int) -> list[int]:
    """Return the context that was asked for and shorter ones, each a power of two.

    >>> contexts(4096), contexts(20_000), contexts(512)
    ([4096, 2048, 1024], [20000, 16384, 8192, 4096, 2048, 1024], [512])
    """
    shorter = (1 << power for power in reversed(range(most.bit_length())))
    return [most, *(context for context in shorter if _LEAST_CONTEXT <= context < most)]


def does_not_fit(
    plans: WeightPlanCache,
    devices: Sequence[Device],
    request: Request,
    tried: Sequence[Arrangement],
    context: int,
    others: Sequence[Device] = (),
) -> DoesNotFit:
    """The error that says by how much it does not fit, and which smallest changes would do; ``others`` are devices that
    were not named, and could hold layers too."""
    groups = groups_of(devices, request.together, others)
    closest = min(tried, key=lambda a: a.over)
    ways = [
        *fewer_sequences(plans, groups, request, context),
        *less_context(plans, groups, request, context),
        *smaller_format(plans, groups, request, context, closest),
    ]
    ways = ways or _smaller_and_shorter(plans, groups, request, context)
    if not any("--context" in way for way in ways):
        ways += _shorter_with_more(plans, devices, request, context, closest)
    ways += _with_other_devices(plans, devices, others, request, context) if others else []
    ways.append(more_memory(plans, devices, request, tried))
    return DoesNotFit(f"{plans.subject.name} does not fit.", _facts((*devices, *others), tried, closest, context), ways)


def _facts(devices: Sequence[Device], tried: Sequence[Arrangement], closest: Arrangement, context: int) -> list[str]:
    """Return the facts of a refusal: the closest arrangement, its memory by part, and a weight that no kernel takes."""
    refused = [a.weight_plan.refused for a in tried if a.weight_plan.refused]
    tight = max(closest.placements, key=lambda p: p.memory.most - p.budget)
    names = {device.id: device.id if device.real else device.name for device in devices}
    facts = [
        f"closest: {storage_name(closest.storage) if closest.storage else 'as stored'} on {names[tight.device]}, "
        f"{size(tight.memory.most)} with {context:,} tokens; the budget there is {size(tight.budget)}",
        f"weights {size(tight.memory.weights)}, cache {size(tight.memory.kv_cache)}, "
        f"the rest {size(tight.memory.most - tight.memory.weights - tight.memory.kv_cache)}",
    ]
    return facts + ([f"{refused[0].tensor.name}: {refused[0].reason}"] if refused else [])


def groups_of(
    devices: Sequence[Device], together: bool = False, known: Sequence[Device] = ()
) -> list[tuple[Device, ...]]:
    """Each device alone, and all together; only that where they are one budget.

    A device of WebGPU, which may be one of the other cards once more, shares layers with the processor alone: with that
    among ``known`` ones where only the card was named.
    """
    if together and len(devices) > 1:
        return [tuple(devices)]
    sharing = tuple(device for device in devices if device.kind != "webgpu")
    all_of_them = [sharing] if len(sharing) > 1 else []
    processors = [device for device in (*devices, *known) if device.kind == "cpu"][:1]
    cards = [device for device in devices if device.kind == "webgpu"]
    shared = [(card, processor) for card in cards for processor in processors]
    return [*((device,) for device in devices), *all_of_them, *shared]


def _command(plans: WeightPlanCache, request: Request, **changed: str | int | None) -> str:
    """The command that asks the same with something changed; None takes an option away."""
    typed = request.typed
    named = {"format": request.format, "device": typed.device or request.device, "software": typed.software}
    memory = {"memory": ",".join(budget_text(name, count) for name, count in request.memory.items()) or None}
    several = {"parallel": request.batch} if request.batch > 1 else {}
    options = named | {"context": request.context, "cache-type": request.cache_type} | several | memory | changed
    words = [f"--{name} {quoted(value)}" for name, value in options.items() if value is not None]
    command = "rung plan" if several and typed.command == "rung run" else typed.command
    return " ".join([command, quoted(typed.model or name_of(plans.subject.path)), *words])


def budget_text(device: str, count: int) -> str:
    """A budget as ``--memory`` takes it, exactly: ``4.6GB``, ``cpu=300MB``."""
    short = round(count / 2**30, 1)
    exact = int(short * 2**30) == count
    text = f"{short}GB" if exact else f"{count // 2**20}MB" if count % 2**20 == 0 else str(count)
    return text if device == "*" else f"{device}={text}"


def more_memory(
    plans: WeightPlanCache, devices: Sequence[Device], request: Request, tried: Sequence[Arrangement]
) -> str:
    """The least budget that holds the model on one device; another device where none here has so much."""
    alone = sorted((a.placements[0].memory.most, a.placements[0].device) for a in tried if len(a.placements) == 1)
    free = {device.id: device.budget for device in devices}
    for needed, device in alone:
        if tenths(needed) * 2**30 <= free[device]:
            return _command(plans, request, memory=f"{tenths(needed)}GB")
    if not alone:
        needed = min(sum(placement.memory.most for placement in a.placements) for a in tried)
        return f"devices with {tenths(needed)} GB free together"
    return f"a device with {tenths(alone[0][0])} GB free"


def _fits(plans: WeightPlanCache, format: Storage, groups: Groups, request: Request, context: int) -> bool:
    return any(arrangements(plans, format, group, request, context)[-1].over <= 0 for group in groups)


def fewer_sequences(plans: WeightPlanCache, groups: Groups, request: Request, context: int) -> list[str]:
    """The command with as many sequences at once as fit with the whole context; none where not even one does."""
    name = request.format or (None if plans.subject.keeps else _COARSE)
    format = storage(name) if name and name != "stored" else None

    def fits(count: int) -> bool:
        return _fits(plans, format, groups, replace(request, batch=count), context)

    most = _largest(request.batch - 1, fits)
    return [_command(plans, request, format=name, parallel=most)] if most else []


def less_context(plans: WeightPlanCache, groups: Groups, request: Request, context: int) -> list[str]:
    """The command with the largest context, in steps, that fits in the format asked for; none where no context does."""
    name = request.format or (None if plans.subject.keeps else _COARSE)
    format = storage(name) if name and name != "stored" else None
    steps = _largest((context - 1) // _STEP, lambda count: _fits(plans, format, groups, request, count * _STEP))
    return [_command(plans, request, format=name, context=steps * _STEP)] if steps else []


def smaller_format(
    plans: WeightPlanCache, groups: Groups, request: Request, context: int, closest: Arrangement
) -> list[str]:
    """The command with the finest format smaller than what was tried that fits the whole context."""
    stored = sum(w.bytes for w in closest.weights)
    for name in _SMALLER:
        format = storage(name)
        smaller = _bits(format) * plans.subject.parameters / 8 < stored
        if name != request.format and smaller and _fits(plans, format, groups, request, context):
            return [_command(plans, request, format=name)]
    return []


def _bits(format: Storage) -> float:
    """Bits of most weights."""
    return format.base.bits if isinstance(format, Mixture) else format.bits if format is not None else 0.0


def _smaller_and_shorter(plans: WeightPlanCache, groups: Groups, request: Request, context: int) -> list[str]:
    """The command with a smaller format and a shorter context, where neither alone is enough."""
    for shorter in contexts(context)[1:]:
        for name in _SMALLER:
            if _fits(plans, storage(name), groups, request, shorter):
                return [_command(plans, request, format=name, context=shorter)]
    return []


def _shorter_with_more(
    plans: WeightPlanCache, devices: Sequence[Device], request: Request, context: int, closest: Arrangement
) -> list[str]:
    """The command with the least budget, in tenths of a GB, that holds a short context, and the longest one it holds;
    none where the whole context needs no more."""
    alone = [device for device in devices if device.id == closest.placements[0].device]
    if context <= SMALLEST_CONTEXT or not request.memory or len(closest.placements) > 1:
        return []
    stored = replace(request, cache_type=closest.cache_dtype) if closest.cache_dtype in IN_BLOCKS else request
    shortest = arrange(plans, closest.storage, alone, stored, SMALLEST_CONTEXT, closest.packed).placements[0].memory
    budget = int(tenths(shortest.most) * 2**30)
    if budget >= min(closest.placements[0].memory.most, alone[0].budget):
        return []
    larger = replace(request, memory=FrozenDict({"*": budget}))
    return less_context(plans, [alone], larger, context)


def _with_other_devices(
    plans: WeightPlanCache, devices: Sequence[Device], others: Sequence[Device], request: Request, context: int
) -> list[str]:
    """The command that lets other devices hold layers too, where that is enough: all that are here, or, of a card that
    is not here, the CPU beside it."""
    name = request.format or (None if plans.subject.keeps else _COARSE)
    format = storage(name) if name and name != "stored" else None
    every = [*devices, *others]
    if all(device.real for device in every):
        together = [(device,) for device in every] if plans.subject.borrowed else groups_of(every)
        where = None
    elif plans.subject.borrowed:
        return []
    else:
        together, where = [tuple(every)], "+".join([str(request.typed.device), *(device.id for device in others)])
    free = replace(request, device=None, typed=replace(request.typed, device=where))
    return [_command(plans, free, format=name)] if _fits(plans, format, together, free, context) else []


def other_training(
    path: str,
    original: Question,
    sequence: int,
    groups: Sequence[Group],
    fitting: Callable[[Question, Sequence[Group]], Group | None],
) -> list[Relaxation]:
    """Ways of training that fit where the one that was asked for does not, the least different first.

    ``fitting`` finds the first of some devices on which a question has a yes; ``sequence`` is the length of one.
    """
    alone = [(device,) for group in groups for device in group]
    if alone != list(groups) and (group := fitting(original, alone)) is not None:
        return [Relaxation("one device by itself", _check_command(path, original, group))]
    lora, other = replace(original, training="lora", optimizer=None, formats=()), replace(original, formats=())
    ways = _Ways(path, original, sequence, lambda question: fitting(question, alone))
    ways.offer_fewer(original)
    ways.offer("an optimizer with 8-bit state", replace(original, optimizer="adamw8bit"))
    ways.offer("another format", other)
    ways.offer_shorter(original)
    if not ways.found and original.formats:
        ways.offer_fewer(other, "another format, ")
        ways.offer_shorter(other, "another format, ")
    ways.offer("adapters", lora)
    if not ways.found:
        ways.offer_fewer(lora, "adapters, ")
        ways.offer_shorter(lora, "adapters, ")
    if not ways.found:
        ways.offer_shorter(replace(lora, batch=1), "adapters, one sequence at a time, ")
    if len(groups) == 1:
        ways.found[original] = Relaxation("another card: every one that trains it", _check_command(path, original, ()))
    return list(ways.found.values())


class _Ways:
    """Questions near ``question`` with a yes, found one by one; ``fitting`` names the devices that have it."""

    def __init__(
        self, path: str, question: Question, sequence: int, fitting: Callable[[Question], Group | None]
    ) -> None:
        self._path, self._question, self._sequence, self._fitting = path, question, sequence, fitting
        self.found: dict[Question, Relaxation] = {}

    def offer(self, words: str, question: Question) -> None:
        """Add the question if it fits and is not there yet."""
        if question not in (self._question, *self.found) and (group := self._fitting(question)) is not None:
            self.found[question] = Relaxation(words, _check_command(self._path, question, group))

    def offer_fewer(self, base: Question, words: str = "") -> None:
        """Add the same with the largest smaller batch that fits."""
        batch = _largest(base.batch - 1, lambda count: self._fits(replace(base, batch=count)))
        if batch:
            number = "one sequence" if batch == 1 else f"{batch} sequences"
            self.offer(f"{words}{number} at a time", replace(base, batch=batch))

    def offer_shorter(self, base: Question, words: str = "") -> None:
        """Add the same with the longest shorter sequence that fits, in steps; of very short ones nothing is learned."""
        most = (self._sequence - 1) // _STEP
        length = _STEP * _largest(most, lambda count: self._fits(replace(base, sequence=count * _STEP)))
        if length >= _LEAST_SEQUENCE:
            self.offer(f"{words}sequences of {length:,} tokens", replace(base, sequence=length))

    def _fits(self, question: Question) -> bool:
        return self._fitting(question) is not None


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``most`` that fits, by bisection; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _name(format: str) -> str:
    return format if format == "stored" else storage_name(storage(format))


def _check_command(path: str, question: Question, group: Group) -> str:
    """The command that asks this of a group of devices, of every card of the catalog without one."""
    options = {
        "device": "+".join(device.id if device.real else device.name for device in group) or None,
        "training": question.training,
        "optimizer": question.optimizer,
        "rank": question.rank,
        "sequence": question.sequence,
        "batch": question.batch if question.batch > 1 else None,
    }
    words = [word for name, value in options.items() if value for word in (f"--{name}", str(value))]
    formats = [word for name in question.formats for word in ("--format", _name(name))]
    return shlex.join(["rung", "check", path, *([] if group else ["--fits"]), *words, *formats])
