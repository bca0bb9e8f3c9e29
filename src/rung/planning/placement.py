"""Where the layers go: one device, or several when one is too small."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rung import formats
from rung.core.types import YES, Device, Format, Level, MemoryUse, Placement, Verdict, no
from rung.models.decoder_memory import IN_BLOCKS
from rung.planning.memory import activations_taken, memory_use
from rung.planning.network_spec import Subject
from rung.planning.request import Request
from rung.planning.speed import Rates, has_kernel, rates, split_rates
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
    """Return whether a device of WebGPU computes all of it: there is one rung for whole tokens, and nothing between."""
    subject = arrangement.weight_plan.subject
    if all(device.kind != "webgpu" for _, device, _ in arrangement.parts):
        return YES
    if len(arrangement.parts) > 1:
        return no("a device of WebGPU shares no layers with another one")
    if subject.decoder is None or subject.borrowed:
        return no("torch computes it, which drives no device of WebGPU")
    plan, device, _ = arrangement.parts[0]
    return plan.step_verdict(device, arrangement.cache_dtype)


def arrange(
    plans: WeightPlanCache, storage: Storage, devices: Sequence[Device], request: Request, context: int, packed: bool
) -> Arrangement:
    """The layers over the devices in their order: each takes as many as its budget holds, the last the rest."""
    subject = plans.subject
    layers, lossless = subject.layers, is_lossless(subject, storage)
    cache_dtype = request.cache_type or usual_cache(subject, storage, devices[0])
    placements: list[Placement] = []
    speeds: list[tuple[Rates, int]] = []
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
            speed = rates(
                weight_plan.groups, subject, device, context, cache_dtype, request.prompt_tokens, request.batch
            )
            speeds.append((speed, last - first))
            parts.append((weight_plan, device, last - first))
        first = last
    dtype = compute_dtype(devices[0], lossless)
    first_plan = plans.plan(storage, devices[0], dtype, packed)
    rate = split_rates(speeds, layers)
    return Arrangement(storage, dtype, cache_dtype, packed, first_plan, tuple(placements), rate, tuple(parts))


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
    if best.over <= 0 or not best.weight_plan.widened or plans.subject.borrowed:
        return [best]
    plain = arrange(plans, format, group, request, context, packed=False)
    return [best, plain] if plain.over <= 0 else [best]


def _memory(
    weight_plan: WeightPlan, device: Device, request: Request, context: int, cache_dtype: str, alone: bool
) -> Callable[[int, int], MemoryUse]:
    """Return a function from a range of layers to its memory on a device; ``alone``: the device holds all layers."""
    torch = not (alone and weight_plan.reads_without_torch(device, cache_dtype))
    block = weight_plan.cache_block(device, cache_dtype) if alone else 0
    taken = activations_taken(kind.weight for kind in weight_plan.kinds)

    def use(first: int, last: int) -> MemoryUse:
        weights, count, batch = weight_plan.bytes(first, last), last - first, request.batch
        return memory_use(
            weights,
            weight_plan.subject,
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
