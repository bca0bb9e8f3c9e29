"""Choose the format, dtype and devices of a plan: memory, time and error of each candidate, and the best that fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rung.core.errors import ContextTooLong, DeviceError, UnknownDevice, UsageError
from rung.core.text import count, did_you_mean, quoted, size
from rung.core.types import YES, Candidate, Device, Format, Plan, StepClass, StepDown, Verdict, no
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.cards.folder import NetworkCard
from rung.models.lookup import name_of
from rung.planning.answers.suggestions import SMALLEST_CONTEXT, does_not_fit, groups_of
from rung.planning.gguf_mixtures import storage
from rung.planning.memory import computes
from rung.planning.network_spec import Subject
from rung.planning.placement import (
    Arrangement,
    arrangements,
    cache_verdict,
    computable,
    is_lossless,
    webgpu_verdict,
)
from rung.planning.request import Request
from rung.planning.speed import READING_SPEED, Rates, at_reading_speed, in_turn, rates
from rung.planning.weight_plan import WIDER, Storage, compute_dtype, parts, percent
from rung.planning.weight_plan_cache import WeightPlanCache

#: Without --context a plan holds this many tokens, or fewer where the model or the memory ends.
DEFAULT_CONTEXT = 4096
#: Formats that an unquantized folder may be stored in by itself.
SIXTEEN = ("bf16", "f16")
#: What a reason says between the layers that a device of WebGPU holds and why it holds no more.
_SHARED = ", the others on the processor: "
#: From this share of the highest speed on two formats count as equally fast: predictions are no better.
_NEAR = 0.9
FORMATS = (*SIXTEEN, "q8_0", "int8", "q6_k", "q5_k", "q4_k_m", "q4_k", "nf4", "q4_0")


def solve(card: ModelCard | EncoderCard | NetworkCard, devices: Sequence[Device], request: Request) -> Plan:
    """The plan for a model on these devices.

    A file keeps the formats it is stored in; an unquantized folder runs in 16 bits if that fits and decodes
    at no less than half the speed of the fastest quantized choice, else in the format with the highest
    floor that fits, among those with a fast rung that decode at reading speed. Where none does, speed decides. Keys and
    values are stored in q8_0 where they do not fit otherwise, unless ``cache_type`` says in what. Several
    devices share the layers when one is too small, but not those of an encoder, nor of a network that transformers
    builds; a device of WebGPU, named or not, shares them with the processor.

    Raises ``DoesNotFit`` with the smallest relaxations, ``ContextTooLong``, ``UnknownFormat``,
    ``UnknownDevice``, ``UsageError`` for a budget of another device and for a cache that cannot be, ``DeviceError`` for
    a device that was asked for and computes nothing here.
    """
    request.check_names(devices)
    plans = WeightPlanCache(Subject.of_card(card))
    usable = _usable(card, devices, request)
    contexts = contexts_of(plans.subject, request.context)
    groups = _groups(card, plans.subject, usable, devices, request)
    tried: list[tuple[Arrangement, int, Verdict]] = []
    for context in contexts:
        found = _arranged(plans, groups, request, context)
        tried = tried or found
        fitting = [a for a, _, verdict in found if verdict]
        if fitting:
            best, reasons = choose(plans.subject, fitting, request.format)
            reasons = (*reasons, *cache_reasons(best, request.cache_type), *layer_reasons(best, devices))
            if context < contexts[0]:
                reasons = (*reasons, f"context {context:,}: {contexts[0]:,} tokens do not fit")
            return _plan(plans.subject, best, context, request, reasons, found)
    _check_cache([a for a, _, _ in tried], request.cache_type)
    others = [d for d in devices if computes(d) and d not in usable] if request.device is not None else []
    raise does_not_fit(plans, usable, request, [a for a, _, _ in tried], contexts[0], others)


def _groups(
    card: ModelCard | EncoderCard | NetworkCard,
    subject: Subject,
    usable: Sequence[Device],
    known: Sequence[Device],
    request: Request,
) -> list[tuple[Device, ...]]:
    """Return the devices that are tried together: each alone for a model whose layers are not shared. Raises
    ``UsageError`` where such a model is to have several."""
    if isinstance(card, ModelCard):
        return groups_of(usable, request.together, known)
    if request.together:
        built = "is built by transformers, which computes it" if isinstance(card, NetworkCard) else "is computed"
        raise UsageError(
            f"{subject.name} {built} on one device.",
            ways_out=[f"rung plan {quoted(request.typed.model or card.path)} --device {quoted(usable[0].name)}"],
        )
    return [(device,) for device in usable]


def _arranged(
    plans: WeightPlanCache, groups: Sequence[tuple[Device, ...]], request: Request, context: int
) -> list[tuple[Arrangement, int, Verdict]]:
    """Return the arrangements with a context, each with its verdict; what a card holds alone is not tried twice."""
    return [
        (a, context, verdict_of(a, group, request.cache_type))
        for format, group in itertools.product(storages(plans.subject, request.format), groups)
        for a in arrangements(plans, format, group, request, context)
        if request.together or len(a.placements) == len(group) or not _sharing(group)
    ]


def _usable(
    card: ModelCard | EncoderCard | NetworkCard, devices: Sequence[Device], request: Request
) -> tuple[Device, ...]:
    if request.device is not None:
        named_devices = named(devices, request.device)
        if not (verdict := computes(named_devices)):
            raise DeviceError(
                f"{named_devices.name} ({named_devices.id}) cannot run a model here.",
                [verdict.reason],
                [f"rung run {quoted(name_of(card.path))} --device cpu", "rung devices"],
            )
        return (named_devices,)
    able = [d for d in devices if computes(d)]
    if request.together:
        return tuple(able)
    return tuple(sorted(able, key=lambda d: (d.kind == "cpu", -(d.bandwidth or 0))))


def named(devices: Sequence[Device], name: str) -> Device:
    """The device of that id, or the first of that kind. Raises ``UnknownDevice``."""
    for device in devices:
        if name in (device.id, device.kind):
            return device
    ids = [device.id for device in devices]
    raise UnknownDevice(
        f"There is no device {name!r} here.{did_you_mean(name, ids)}",
        [f"devices here: {', '.join(ids)}"],
        ["rung devices"],
    )


def choose_device(devices: Sequence[Device], name: str | None, webgpu: bool = False) -> Device:
    """The device that is named, by default the first card that torch computes on, else the CPU.

    ``webgpu``: before the CPU comes the first card that WebGPU reaches and whose memory is known. Raises
    ``UnknownDevice``.
    """
    if name is not None:
        return named(devices, name)
    able = [device for device in devices if computes(device)]
    cards = [device for device in able if device.torch_computes and device.kind != "cpu"]
    if webgpu:
        cards += [device for device in able if device.kind == "webgpu" and device.budget]
    return cards[0] if cards else [device for device in able if device.torch_computes][-1]


def contexts_of(subject: Subject, requested: int | None) -> list[int]:
    """The contexts to try, longest first: the one asked for, else ``DEFAULT_CONTEXT`` and its halves.

    Raises ``ContextTooLong``.
    """
    most = subject.shape.context
    if requested is not None:
        if most and requested > most:
            raise ContextTooLong(
                f"A context of {requested:,} tokens is longer than the model allows.",
                [f"{subject.name} holds {count(most, 'token')}"],
                [f"--context {most}"],
            )
        return [requested]
    largest = min(most or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    smaller = itertools.takewhile(lambda c: c >= SMALLEST_CONTEXT, (largest >> step for step in range(1, 20)))
    return [largest, *smaller]


def storages(subject: Subject, requested: str | None) -> list[Storage]:
    """Return the storages to try: the format asked for, else a file's own, or those that a folder may be stored in.

    Raises ``UnknownFormat``.
    """
    if requested == "stored" or (requested is None and subject.keeps):
        return [None]
    return [storage(name) for name in ([requested] if requested else FORMATS)]


def _check_cache(tried: Iterable[Arrangement], cache_type: str | None) -> None:
    """Raise ``UsageError`` where nothing that was tried can store keys and values in the requested type."""
    verdicts = [cache_verdict(arrangement, cache_type) for arrangement in tried]
    if cache_type is not None and not any(verdicts):
        raise UsageError(
            f"--cache-type {cache_type} is not for this model here.",
            dict.fromkeys(verdict.reason for verdict in verdicts),
            ["leave --cache-type out", f"rung ladder decode_step {cache_type}"],
        )


def cache_reasons(best: Arrangement, cache_type: str | None) -> tuple[str, ...]:
    """Return why keys and values are stored in what they are, where that is not as usual."""
    if cache_type is not None:
        return (f"cache {cache_type}: as asked",)
    if best.cache_dtype != "q8_0":
        return ()
    return (f"cache f16 → q8_0: 16 bits do not fit, error {percent(best.cache_error_db):.1g} %",)


def _sharing(group: Sequence[Device]) -> bool:
    """Return whether it is a device of WebGPU with the processor, which takes what is too much for that alone."""
    return len(group) > 1 and any(device.kind == "webgpu" for device in group)


def layer_reasons(best: Arrangement, devices: Iterable[Device]) -> tuple[str, ...]:
    """Return how a device of WebGPU and the processor share the layers."""
    if not best.segmented:
        return ()
    placed = next((p, d) for p in best.placements for d in devices if d.id == p.device and d.kind == "webgpu")
    placement, card = placed
    layers = best.weight_plan.subject.layers
    head = " and the head" if placement.last == layers else ""
    which = f"{placement.last - placement.first} of {count(layers, 'layer')}{head}"
    return (f"{which} on {card.name}{_SHARED}{size(placement.budget)} hold no more",)


def verdict_of(arrangement: Arrangement, group: Sequence[Device], cache_type: str | None) -> Verdict:
    """Return whether it would run there: every weight has a rung, every device multiplies the format, the cache can be
    the requested type, and it fits."""
    if arrangement.weight_plan.refused:
        return no(arrangement.weight_plan.refused.reason)
    for able in (
        *(computable(arrangement.storage, device) for device in group),
        cache_verdict(arrangement, cache_type),
        webgpu_verdict(arrangement),
    ):
        if not able:
            return able
    if arrangement.over > 0:
        tight = max(arrangement.placements, key=lambda p: p.memory.most - p.budget)
        name = next((device.name for device in group if device.id == tight.device), tight.device)
        reason = f"needs up to {size(tight.memory.most)}, {name} has {size(tight.budget)}"
        return no(reason, StepClass.OUT_OF_MEMORY)
    return YES


def choose(subject: Subject, fitting: list[Arrangement], format: str | None) -> tuple[Arrangement, tuple[str, ...]]:
    """The best of what fits, and why."""
    if format is not None:
        return _fastest(fitting), (f"{format}: as asked",)
    if subject.keeps:
        return _fastest(fitting), ("the formats are kept as they are stored",)
    wide = [a for a in fitting if a.name in SIXTEEN]
    quantized = [a for a in fitting if a.name not in SIXTEEN]
    pace = _fastest(fitting).rates.decode
    if wide and (not quantized or _wide_enough(wide, quantized, pace)):
        best = _fastest(wide)
        return best, (f"{best.name}: 16 bits fit and are fast enough here",)
    fast = [a for a in quantized if a.weight_plan.fast] or quantized
    readable = [a for a in fast if at_reading_speed(a.rates.decode)]
    pool = readable or [a for a in fast if a.rates.decode >= _NEAR * pace] or fast
    top = max(_floor(a) for a in pool)
    best = max((a for a in pool if _floor(a) == top), key=lambda a: (a.rates.decode, -a.placements[0].memory.total))
    why = "16 bits do not fit" if not wide else f"{best.rates.decode / _fastest(wide).rates.decode:.1f}x faster here"
    if top < max(_floor(a) for a in fast):
        why += f", finer formats stay below {READING_SPEED:.0f} tokens/s"
    return best, (f"{_stored(subject)} → {best.name}: {why}, error {percent(_floor(best)):.1g} %",)


def _wide_enough(wide: list[Arrangement], quantized: list[Arrangement], pace: float) -> bool:
    """Return whether 16 bits are fast enough: half as fast as any quantized format, and below reading speed not
    slower."""
    rate = _fastest(wide).rates.decode
    return rate >= _fastest(quantized).rates.decode / 2 and (at_reading_speed(rate) or rate >= _NEAR * pace)


def steps_down(plan: Plan, cache_type: str | None) -> tuple[StepDown, ...]:
    """The 16 bits that an unquantized folder, or the cache, was not given: each refused there, so that a lower format
    was taken; and the layers that a device of WebGPU has no room for. ``cache_type`` is the requested one."""
    return (*_fewer_layers(plan), *_smaller(plan, cache_type))


def _fewer_layers(plan: Plan) -> tuple[StepDown, ...]:
    """The layers that the processor takes from a device of WebGPU, whose memory is too small for all."""
    for reason in plan.reasons:
        if _SHARED in reason:
            device = next(each.device for each in plan.placements if each.device != "cpu")
            which, _, why = reason.partition(_SHARED)
            return (StepDown("plan", "all layers", device, StepClass.OUT_OF_MEMORY, why, which),)
    return ()


def _smaller(plan: Plan, cache_type: str | None) -> tuple[StepDown, ...]:
    if plan.cache_dtype == "q8_0" and cache_type is None:
        reason = next(reason for reason in plan.reasons if reason.startswith("cache "))
        cache = StepDown("cache", "f16", plan.placements[0].device, StepClass.OUT_OF_MEMORY, reason, "q8_0")
        return (cache, *_narrower(plan))
    return _narrower(plan)


def _narrower(plan: Plan) -> tuple[StepDown, ...]:
    there = {placement.device for placement in plan.placements}
    wide = [c for c in plan.candidates if c.format in SIXTEEN and {p.device for p in c.placements} == there]
    if plan.format in SIXTEEN or any(c.verdict for c in wide):
        return ()
    device = plan.placements[0].device
    return tuple(StepDown("plan", c.format, device, c.verdict.step, c.verdict.reason, plan.format) for c in wide)


def _fastest(arrangements: Iterable[Arrangement]) -> Arrangement:
    return max(arrangements, key=lambda a: (a.rates.decode, a.name == a.dtype))


def _floor(arrangement: Arrangement) -> float:
    """The floor of the format itself; of a mixture, of all its weights together; no more than that of the cache."""
    weights = (
        arrangement.storage.floor_db if isinstance(arrangement.storage, Format) else arrangement.weight_plan.error_db
    )
    return min(weights, arrangement.cache_error_db)


def _stored(subject: Subject) -> str:
    """The format that holds most of the weights."""
    counts: dict[str, int] = {}
    for tensor in subject.tensors:
        counts[tensor.format] = counts.get(tensor.format, 0) + tensor.bytes
    return max(counts, key=lambda name: counts[name])


def speed(plans: WeightPlanCache, plan: Plan, devices: Iterable[Device], prompt: int) -> Rates:
    """Tokens per second that a plan lets expect of a prompt of that many tokens, and after it."""
    by_id = {device.id: device for device in devices}
    requested = None if plan.format == "stored" else storage(plan.format)
    lossless = is_lossless(plans.subject, requested)
    found = []
    for placement in plan.placements:
        device = by_id[placement.device]
        weight_plan = plans.plan(requested, device, compute_dtype(device, lossless), plan.packing in WIDER)
        ends, subject = (placement.first, placement.last), plans.subject
        groups, share = weight_plan.groups_on(*ends), (ends[1] - ends[0]) / subject.layers
        found.append(rates(groups, subject, device, plan.context, plan.cache_dtype, prompt, share=share))
    return in_turn(found)


def _plan(
    subject: Subject,
    best: Arrangement,
    context: int,
    request: Request,
    reasons: tuple[str, ...],
    found: list[tuple[Arrangement, int, Verdict]],
) -> Plan:
    name = best.name
    packings = {w.packing for plan, _, _ in best.parts for w in plan.weights if w.multiplies}
    return Plan(
        model=subject.name,
        format=name,
        dtype=best.dtype,
        cache_dtype=best.cache_dtype,
        context=context,
        placements=best.placements,
        parts=parts(best.weights, name),
        packing=next((name for name in (*WIDER, "mapped") if name in packings), "stored"),
        threads=request.threads,
        decode_rate=best.rates.decode,
        prefill_rate=best.rates.prefill,
        error_db=best.weight_plan.error_db,
        reasons=reasons,
        candidates=tuple(_candidate(a, c, verdict) for a, c, verdict in found if verdict or not _reduced(a, request)),
        parallel=request.batch,
    )


def _reduced(arrangement: Arrangement, request: Request) -> bool:
    """Return whether its cache is in q8_0 only because it does not fit otherwise."""
    return arrangement.cache_dtype == "q8_0" and request.cache_type is None


def _candidate(arrangement: Arrangement, context: int, verdict: Verdict) -> Candidate:
    return Candidate(
        format=arrangement.name,
        dtype=arrangement.dtype,
        placements=arrangement.placements,
        context=context,
        decode_rate=arrangement.rates.decode,
        prefill_rate=arrangement.rates.prefill,
        error_db=arrangement.weight_plan.error_db,
        verdict=verdict,
        timed=arrangement.timed,
    )
