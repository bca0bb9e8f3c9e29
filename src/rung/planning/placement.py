"""Where the layers go: one device, or several when one is too small."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rung import formats
from rung.core.types import YES, Device, Format, Level, MemoryUse, Placement, Verdict, no
from rung.kernels.webgpu import is_webgpu
from rung.models.decoder_memory import IN_BLOCKS
from rung.planning.memory import activations_taken, memory_use
from rung.planning.network_spec import Subject
from rung.planning.request import Request
from rung.planning.speed import Rates, has_kernel, in_turn, rates
from rung.planning.weight_plan import Storage, Weight, compute_dtype
from rung.planning.weight_plan_cache import WeightPlan, WeightPlanCache

_WIDE = ("bf16", "f16")
#: Kinds of devices that have a rung for keys and values in q8_0.
_WITH_Q8_0 = ("cpu", "webgpu", "cuda", "rocm")


@dataclass(frozen=True)
class Arrangement:
    """One way to hold the model: its weights, layers by device and predicted rates.

    ``parts`` are the devices that hold layers, each with the weights as it holds them and the number of its layers.
    """

    storage: Storage
    dtype: str
    cache_dtype: str
    packed: bool
    weight_plan: WeightPlan
    placements: tuple[Placement, ...]
    rates: Rates
    parts: tuple[tuple[WeightPlan, Device, int], ...] = ()

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weights as the first device holds them."""
        return self.weight_plan.weights

    @property
    def segmented(self) -> bool:
        """Return whether a device of WebGPU and the processor share the layers."""
        return len(self.parts) > 1 and any(device.kind == "webgpu" for _, device, _ in self.parts)

    @property
    def over(self) -> int:
        """Bytes above the budget on the tightest device, the bound counted; zero or less when it fits."""
        return max(p.memory.most - p.budget for p in self.placements)

    @property
    def timed(self) -> bool:
        """Return whether its speed is known: not where a CPU decodes weights first, at a rate that nobody measured
        there."""
        return all(has_kernel(group, device) for plan, device, _ in self.parts for group in plan.groups)

    @property
    def cache_error_db(self) -> float:
        """The SQNR of keys and values that are quantized, in dB; infinite for floats."""
        return formats.get(self.cache_dtype).floor_db if self.cache_dtype in IN_BLOCKS else math.inf

    @property
    def name(self) -> str:
        """The format's name, or ``stored``."""
        return self.storage.name if self.storage is not None else "stored"


def is_segmented(placements: Sequence[Placement]) -> bool:
    """Return whether a device of WebGPU and the processor share the layers."""
    return len(placements) > 1 and any(is_webgpu(each.device) for each in placements)


def embedding_device(placements: Sequence[Placement]) -> str:
    """Return the device that looks rows of the embedding up: the first, but where layers are shared the processor."""
    if not is_segmented(placements):
        return placements[0].device
    return next(each.device for each in placements if not is_webgpu(each.device))


def is_lossless(subject: Subject, storage: Storage) -> bool:
    """Return whether everything is computed in f32: where the weights are, and in encoders, whose embeddings are
    compared with those of others."""
    if subject.encoder is not None:
        return True
    if storage is not None:
        return storage.name == "f32"
    return all(t.format == "f32" for t in subject.tensors if len(t.shape) > 1)


def usual_cache(subject: Subject, storage: Storage, device: Device) -> str:
    """Return the default dtype of the KV cache: f32 for lossless storage, else f16."""
    lossless = is_lossless(subject, storage)
    return compute_dtype(device, lossless) if subject.borrowed else "f32" if lossless else "f16"


def cache_verdict(arrangement: Arrangement, cache_type: str | None) -> Verdict:
    """Return whether keys and values can be stored as they would be; ``cache_type`` is the requested one."""
    subject = arrangement.weight_plan.subject
    if cache_type is not None and subject.decoder is None:
        owner = "transformers stores its keys and values" if subject.generates else "it stores no keys and values"
        return no(f"no cache in {cache_type}: {owner}")
    if arrangement.cache_dtype not in IN_BLOCKS:
        return YES
    plan, device, _ = arrangement.parts[0]
    spread = arrangement.cache_dtype != "q8_0"  # rotated and in few bits
    if arrangement.segmented and not spread:
        return YES  # as ``webgpu_verdict`` says
    if len(arrangement.parts) > 1 or device.kind not in (("cpu",) if spread else _WITH_Q8_0):
        where = "one CPU" if spread else "one device: a CPU, an NVIDIA or AMD card, or one of WebGPU"
        return no(f"a cache in {arrangement.cache_dtype} is for {where}")
    return plan.step_verdict(device, arrangement.cache_dtype)


def computable(storage: Storage, device: Device) -> Verdict:
    """Return whether the device can multiply the 16-bit format that was asked for; kernels of a CPU and of WebGPU read
    both."""
    if not isinstance(storage, Format) or storage.name not in _WIDE or device.kind in ("cpu", "webgpu"):
        return YES
    found = device.capability(f"matmul.{storage.name}")
    if found.level is not Level.ABSENT:
        return YES
    return no(f"{device.name} does not multiply {storage.name}" + (f": {found.source}" if found.source else ""))


def webgpu_verdict(arrangement: Arrangement) -> Verdict:
    """Return whether a device of WebGPU computes all of it, or the processor what it does not: there is one rung for
    whole tokens, and nothing between."""
    subject, kinds = arrangement.weight_plan.subject, sorted(device.kind for _, device, _ in arrangement.parts)
    if "webgpu" not in kinds:
        return YES
    if kinds not in (["webgpu"], ["cpu", "webgpu"]):
        return no("a device of WebGPU shares layers with the processor alone")
    if subject.decoder is None or subject.borrowed:
        return no("torch computes it, which drives no device of WebGPU")
    verdicts = [
        plan.step_verdict(device, arrangement.cache_dtype, arrangement.segmented)
        for plan, device, _ in arrangement.parts
    ]
    return next((each for each in verdicts if not each), YES)


def arrange(
    plans: WeightPlanCache, storage: Storage, devices: Sequence[Device], request: Request, context: int, packed: bool
) -> Arrangement:
    """The layers over the devices in their order: each takes as many as its budget holds, the last the rest.

    A device of WebGPU and the processor share them in the order that is predicted to be faster.
    """
    if sorted(device.kind for device in devices) == ["cpu", "webgpu"]:
        return arrange_shared(plans, storage, devices, request, context, packed)
    subject = plans.subject
    layers, lossless = subject.layers, is_lossless(subject, storage)
    cache_dtype = request.cache_type or usual_cache(subject, storage, devices[0])
    placements: list[Placement] = []
    speeds: list[Rates] = []
    parts: list[tuple[WeightPlan, Device, int]] = []
    first = 0
    for device in devices:
        if placements and first == layers:  # those before hold all of it
            break
        weight_plan = plans.plan(storage, device, compute_dtype(device, lossless), packed)
        budget = request.budget(device)
        use = partial(_memory(weight_plan, device, request, context, cache_dtype, len(devices) == 1), first)
        last = layers if device is devices[-1] else _most(use, first, layers, budget)
        if last > first or device is devices[-1]:
            placements.append(Placement(device.id, first, last, use(last), budget))
            if weight_plan.groups_on(first, last):
                speeds.append(_rates(weight_plan, device, request, context, cache_dtype, (first, last)))
            parts.append((weight_plan, device, last - first))
        first = last
    dtype = compute_dtype(devices[0], lossless)
    first_plan = plans.plan(storage, devices[0], dtype, packed)
    speed = in_turn(speeds)
    return Arrangement(storage, dtype, cache_dtype, packed, first_plan, tuple(placements), speed, tuple(parts))


def arrange_shared(
    plans: WeightPlanCache, storage: Storage, devices: Sequence[Device], request: Request, context: int, packed: bool
) -> Arrangement:
    """As many layers as fit on the device of WebGPU, the first ones or the last ones with the head; all where it holds
    them, and where there is one alone."""
    processor, card = sorted(devices, key=lambda device: device.kind)
    alone = arrange(plans, storage, (card,), request, context, packed)
    if alone.over <= 0 or plans.subject.layers < 2:
        return alone
    both = [
        arrange_in_order(plans, storage, o, request, context, packed) for o in ((processor, card), (card, processor))
    ]
    return max(both, key=lambda each: (min(-each.over, 0), each.rates.decode))


def arrange_in_order(
    plans: WeightPlanCache, storage: Storage, order: Sequence[Device], request: Request, context: int, packed: bool
) -> Arrangement:
    """The layers over two devices of which that of WebGPU takes as many as fit, at least one."""
    subject, lossless = plans.subject, is_lossless(plans.subject, storage)
    cache_dtype = request.cache_type or usual_cache(subject, storage, order[0])
    recipes = [plans.plan(storage, device, compute_dtype(device, lossless), packed) for device in order]
    uses = [_memory(*each, request, context, cache_dtype, False, True) for each in zip(recipes, order, strict=True)]
    card, layers = [device.kind for device in order].index("webgpu"), subject.layers
    budgets = [request.budget(device) for device in order]

    def ends(count: int) -> tuple[int, int]:
        return (0, count) if card == 0 else (layers - count, layers)

    most = _most(lambda count: uses[card](*ends(count)), 1, layers - 1, budgets[card])
    cut = ends(most)[1 - card]
    ranges = ((0, cut), (cut, layers))
    found = [use(*each) for use, each in zip(uses, ranges, strict=True)]
    if order[card].details.get("shared_memory"):
        budgets[1 - card] -= found[card].most
    placements = [
        Placement(device.id, *each, use, budget)
        for device, each, use, budget in zip(order, ranges, found, budgets, strict=True)
    ]
    speed = in_turn(
        _rates(plan, device, request, context, cache_dtype, each)
        for plan, device, each in zip(recipes, order, ranges, strict=True)
    )
    parts = tuple(
        (plan, device, last - first) for plan, device, (first, last) in zip(recipes, order, ranges, strict=True)
    )
    dtype = compute_dtype(order[0], lossless)
    return Arrangement(storage, dtype, cache_dtype, packed, recipes[0], tuple(placements), speed, parts)


def _rates(
    plan: WeightPlan, device: Device, request: Request, context: int, cache_dtype: str, ends: tuple[int, int]
) -> Rates:
    """Return the rates of a range of layers on a device."""
    groups, share = plan.groups_on(*ends), (ends[1] - ends[0]) / plan.subject.layers
    prompt, batch = request.prompt_tokens, request.batch
    return rates(groups, plan.subject, device, context, cache_dtype, prompt, batch, share)


def arrangements(
    plans: WeightPlanCache, format: Storage, group: Sequence[Device], request: Request, context: int
) -> list[Arrangement]:
    """The arrangement with fast packings, and one without where only that fits; layers of ``rung.nn`` always pack.

    Where fast packings do not fit, also the same with a cache in q8_0, if that can be and nobody said what the cache is
    stored in. The last one is the one to take.
    """
    found = _packings(plans, format, group, request, context)
    usual = found[0].cache_dtype == "f16" and request.cache_type is None  # where nothing is to be lost, nothing is
    if found[0].over <= 0 or not usual or plans.subject.decoder is None or group[0].kind not in _WITH_Q8_0:
        return found
    smaller = _packings(plans, format, group, replace(request, cache_type="q8_0"), context)[-1]
    if not cache_verdict(smaller, None) or (found[-1].over <= 0 and (smaller.over > 0 or not smaller.packed)):
        return found
    return [*found, smaller]


def _packings(
    plans: WeightPlanCache, format: Storage, group: Sequence[Device], request: Request, context: int
) -> list[Arrangement]:
    best = arrange(plans, format, group, request, context, packed=True)
    if best.over <= 0 or not any(plan.widened for plan, _, _ in best.parts) or plans.subject.borrowed:
        return [best]
    plain = arrange(plans, format, group, request, context, packed=False)
    return [best, plain] if plain.over <= 0 else [best]


def _memory(
    weight_plan: WeightPlan,
    device: Device,
    request: Request,
    context: int,
    cache_dtype: str,
    alone: bool,
    shared: bool = False,
) -> Callable[[int, int], MemoryUse]:
    """Return a function from a range of layers to its memory on a device. ``alone``: the device holds all layers;
    ``shared``: a device of WebGPU and the processor share them."""
    torch = not (shared or (alone and weight_plan.reads_without_torch(device, cache_dtype)))
    block = weight_plan.cache_block(device, cache_dtype) if alone or shared else 0
    embeds = device.kind == "cpu" if shared else None
    taken = activations_taken(kind.weight for kind in weight_plan.kinds)

    def use(first: int, last: int) -> MemoryUse:
        weights, count, batch = weight_plan.bytes(first, last, embeds), last - first, request.batch
        return memory_use(
            weights,
            _only(weight_plan.subject, first, last) if shared else weight_plan.subject,
            device,
            count,
            context,
            cache_dtype,
            batch,
            torch=torch,
            block=block,
            taken=taken,
            rank=request.rank,
        )

    return use


def _only(subject: Subject, first: int, last: int) -> Subject:
    """Return a subject whose decoder has the layers [first, last) alone: windows differ from layer to layer."""
    decoder = subject.decoder
    return subject if decoder is None else replace(subject, decoder=replace(decoder, layers=decoder.layers[first:last]))


def _most(use: Callable[[int], MemoryUse], first: int, layers: int, budget: int) -> int:
    """The largest end of a range of layers that fits, by bisection: memory grows with every layer."""
    low, high = first, layers
    while low < high:
        middle = (low + high + 1) // 2
        if use(middle).most <= budget:
            low = middle
        else:
            high = middle - 1
    return low
