"""Chooses: candidates of format, dtype and devices; memory, time and error of each; the best that fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from rung import formats
from rung.core.errors import ContextTooLong, DeviceError, UnknownDevice
from rung.core.text import count, did_you_mean, size
from rung.core.types import YES, Candidate, Device, Format, Level, Plan, Verdict, no
from rung.models.card import ModelCard
from rung.planning.arrange import Arrangement, arrange
from rung.planning.error import combined_db, percent
from rung.planning.recipe import parts
from rung.planning.relax import does_not_fit
from rung.planning.request import Request

#: Without --context a plan holds this many tokens, or fewer where the model or the memory ends.
DEFAULT_CONTEXT = 4096
#: A context below this is not chosen by itself: no conversation fits in it.
SMALLEST_CONTEXT = 256
#: Quantised formats that an unquantised folder may be stored in by itself.
_QUANTISED = ("q8_0", "int8", "q6_k", "q5_k", "q4_k", "nf4", "q4_0")
_SIXTEEN = ("bf16", "f16")


def solve(card: ModelCard, devices: Sequence[Device], request: Request) -> Plan:
    """The plan for a model on these devices.

    A file keeps the formats it is stored in; an unquantised folder runs in 16 bits if that fits and decodes
    at no less than half the speed of the fastest quantised choice, else in the format with the highest
    floor that fits, among those with a fast rung. Several devices share the layers when one is too small.

    Raises ``DoesNotFit`` with the smallest relaxations, ``ContextTooLong``, ``UnknownFormat``,
    ``UnknownDevice``, ``DeviceError`` for a device that was asked for and computes nothing here.
    """
    usable = _usable(card, devices, request)
    contexts = _contexts(card, request)
    tried: list[tuple[Arrangement, int, Verdict]] = []
    for context in contexts:
        found = [(a, context, _verdict(a)) for a in _arrangements(card, usable, request, context)]
        tried = tried or found
        fitting = [a for a, _, verdict in found if verdict]
        if fitting:
            best, reasons = _choose(card, fitting, request)
            if context < contexts[0]:
                reasons = (*reasons, f"context {context:,}: {contexts[0]:,} tokens do not fit")
            return _plan(card, best, context, request, reasons, found)
    raise does_not_fit(card, usable, request, [a for a, _, _ in tried], contexts[0])


def _usable(card: ModelCard, devices: Sequence[Device], request: Request) -> tuple[Device, ...]:
    if request.device is not None:
        named = [d for d in devices if d.id == request.device or (d.kind == request.device and d.id.endswith(":0"))]
        if not named:
            ids = [d.id for d in devices]
            raise UnknownDevice(
                f"There is no device {request.device!r} here.{did_you_mean(request.device, ids)}",
                [f"devices here: {', '.join(ids)}"],
                ["rung devices"],
            )
        if not (verdict := computes(named[0])):
            raise DeviceError(
                f"{named[0].name} ({named[0].id}) cannot run a model here.",
                [verdict.reason],
                [f"rung run {card.path} --device cpu", "rung devices"],
            )
        return (named[0],)
    able = [d for d in devices if computes(d)]
    return tuple(sorted(able, key=lambda d: (d.kind == "cpu", -(d.bandwidth or 0))))


def computes(device: Device) -> Verdict:
    """Whether a device is worth planning for: a CPU, or a GPU that multiplies, as a probe or the catalogue says."""
    found = [device.capability(f"matmul.{dtype}") for dtype in ("f32", "f16", "bf16")]
    if device.kind == "cpu" or any(c.level in (Level.NATIVE, Level.EMULATED) for c in found):
        return YES
    return no(found[0].source or "nobody knows what it can do; rung devices --probe finds out")


def _contexts(card: ModelCard, request: Request) -> list[int]:
    if request.context is not None:
        if request.context > card.decoder.context:
            raise ContextTooLong(
                f"A context of {request.context:,} tokens is longer than the model allows.",
                [f"{card.name} holds {count(card.decoder.context, 'token')}"],
                [f"rung run {card.path} --context {card.decoder.context}"],
            )
        return [request.context]
    largest = min(card.decoder.context, DEFAULT_CONTEXT)
    smaller = itertools.takewhile(lambda c: c >= SMALLEST_CONTEXT, (largest >> step for step in range(1, 20)))
    return [largest, *smaller]


def _formats(card: ModelCard, request: Request) -> list[Format | None]:
    if request.format is not None and request.format != "stored":
        return [formats.get(request.format)]
    if card.kind == "gguf" or request.format == "stored":
        return [None]
    return [formats.get(name) for name in (*_SIXTEEN, *_QUANTISED)]


def _arrangements(card: ModelCard, devices: Sequence[Device], request: Request, context: int) -> list[Arrangement]:
    groups: list[tuple[Device, ...]] = [(device,) for device in devices]
    if len(devices) > 1:
        groups.append(tuple(devices))
    found = []
    for format, group in itertools.product(_formats(card, request), groups):
        best = arrange(card, format, group, request, context, packed=True)
        plain = arrange(card, format, group, request, context, packed=False)
        found.append(best)
        if best.over > 0 >= plain.over:  # the fast packing is too wide: stay with the stored layout
            found.append(plain)
    return found


def _verdict(arrangement: Arrangement) -> Verdict:
    unrunnable = [w for w in arrangement.weights if not w.rung]
    if unrunnable:
        return no(unrunnable[0].reason)
    if arrangement.over > 0:
        tight = max(arrangement.placements, key=lambda p: p.memory.total - p.budget)
        return no(f"needs {size(tight.memory.total)} of the {size(tight.budget)} on {tight.device}")
    return YES


def _choose(card: ModelCard, fitting: list[Arrangement], request: Request) -> tuple[Arrangement, tuple[str, ...]]:
    if request.format is not None:
        return _fastest(fitting), (f"{request.format}: as asked",)
    if card.kind == "gguf":
        return _fastest(fitting), ("the formats are kept as they are stored",)
    wide = [a for a in fitting if a.format is not None and a.format.name in _SIXTEEN]
    quantised = [a for a in fitting if a not in wide]
    if wide and (not quantised or _fastest(wide).rates.decode >= _fastest(quantised).rates.decode / 2):
        best = _fastest(wide)
        return best, (f"{_name(best)}: 16 bits fit and are fast enough here",)
    fast = [a for a in quantised if _has_fast_rung(a)] or quantised
    top = max(_floor(a) for a in fast)
    best = max((a for a in fast if _floor(a) == top), key=lambda a: (a.rates.decode, -a.placements[0].memory.total))
    why = "16 bits do not fit" if not wide else f"{best.rates.decode / _fastest(wide).rates.decode:.1f}x faster here"
    return best, (f"{_stored(card)} → {_name(best)}: {why}, error {percent(_floor(best)):.1g} %",)


def _fastest(arrangements: Iterable[Arrangement]) -> Arrangement:
    return max(arrangements, key=lambda a: a.rates.decode)


def _has_fast_rung(arrangement: Arrangement) -> bool:
    return any(w.rung not in ("torch.decode", "ref") for w in arrangement.weights if len(w.tensor.shape) > 1)


def _floor(arrangement: Arrangement) -> float:
    return arrangement.format.floor_db if arrangement.format is not None else math.inf


def _name(arrangement: Arrangement) -> str:
    return arrangement.format.name if arrangement.format is not None else "stored"


def _stored(card: ModelCard) -> str:
    """The format that holds most of the weights."""
    held: dict[str, int] = {}
    for tensor in card.tensors:
        held[tensor.format] = held.get(tensor.format, 0) + tensor.bytes
    return max(held, key=lambda name: held[name])


def _error(card: ModelCard, arrangement: Arrangement) -> float:
    """The weights' SQNR against the stored model: what a file lost before is not counted."""
    if arrangement.format is None:
        return math.inf
    return combined_db((w.count, w.format.floor_db) for w in arrangement.weights if len(w.tensor.shape) > 1)


def _plan(
    card: ModelCard,
    best: Arrangement,
    context: int,
    request: Request,
    reasons: tuple[str, ...],
    found: list[tuple[Arrangement, int, Verdict]],
) -> Plan:
    name = _name(best)
    packings = {w.packing for w in best.weights if len(w.tensor.shape) > 1}
    return Plan(
        model=card.name,
        format=name,
        dtype=best.dtype,
        cache_dtype=best.cache_dtype,
        context=context,
        placements=best.placements,
        parts=parts(best.weights, name),
        packing="r16" if "r16" in packings else "stored",
        threads=request.threads,
        decode_rate=best.rates.decode,
        prefill_rate=best.rates.prefill,
        error_db=_error(card, best),
        reasons=reasons,
        candidates=tuple(_candidate(card, a, c, verdict) for a, c, verdict in found),
    )


def _candidate(card: ModelCard, arrangement: Arrangement, context: int, verdict: Verdict) -> Candidate:
    return Candidate(
        format=_name(arrangement),
        dtype=arrangement.dtype,
        placements=arrangement.placements,
        context=context,
        decode_rate=arrangement.rates.decode,
        prefill_rate=arrangement.rates.prefill,
        error_db=_error(card, arrangement),
        verdict=verdict,
    )
