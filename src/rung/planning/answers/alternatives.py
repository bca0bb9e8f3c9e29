"""Hold what runs where nothing does as asked: coarser formats, a shorter context, some layers on the CPU; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rung.core.text import count
from rung.core.types import Device, Format
from rung.formats.table import grade
from rung.hardware.select import Group, group_id
from rung.planning.answers.suggestions import contexts
from rung.planning.answers.values import Alternative, Choice
from rung.planning.gguf_mixtures import storage
from rung.planning.placement import Arrangement
from rung.planning.weight_plan import Storage, storage_name

#: Mixtures of 3 bits: tried with the usual formats, and where even these do not fit.
_COARSE, _COARSEST = ("q3_k_m",), ("q3_k_s",)
#: A shorter context is offered beside a coarser format where it keeps so many dB more.
_WORTH_DB = 1.0
#: The CPU beside a card is offered for speed alone from this factor on.
_FASTER = 1.5

#: One format on devices with so many tokens of context.
Attempt = Callable[[Storage, Group, int], tuple[Choice, Arrangement]]
#: The best of some arrangements, as ``rung run`` would choose.
Pick = Callable[[Sequence[Arrangement]], Arrangement]


@dataclass(frozen=True)
class GroupRequest:
    """Hold what was asked of a group of devices: ``formats`` to try, ``context`` in tokens, and whether a person named
    them."""

    group: Group
    formats: tuple[Storage, ...]
    context: int
    named_formats: bool
    named_context: bool


def instead(
    request: GroupRequest, cpu: Device | None, usual: Sequence[Storage], attempt: Attempt, pick: Pick
) -> list[Alternative]:
    """Return alternatives to the question that run on these devices, the least different first.

    ``usual`` are the formats that ``rung run`` tries by itself; ``cpu`` takes the layers that the devices do not hold.
    """
    every = _distinct([*request.formats, *usual, *map(storage, _COARSE)])
    tries: list[list[Storage]] = [every, [storage(name) for name in _COARSEST]]
    if request.named_formats:
        tries = [list(request.formats), *tries]
    found: list[Alternative] = []
    for formats in tries:
        found = found or _on_devices(request, formats, attempt, pick)
    shared: Alternative | None = None
    if cpu is not None and all(device.kind != "cpu" for device in request.group):
        for formats in tries:
            shared = shared or _split_with_cpu(request, cpu, formats, attempt, pick)
    return found + ([shared] if shared and _adds(shared, found) else [])


def _adds(shared: Alternative, found: Sequence[Alternative]) -> bool:
    """Return whether the CPU beside the card is worth a word: it keeps an option, more of the weights, or is much
    faster."""
    best = max(found, key=lambda each: each.choice.error_db, default=None)
    if best is None or (shared.as_asked and not best.as_asked):
        return True
    finer = shared.choice.error_db > best.choice.error_db
    rate, own = (each.choice.speed.decode_tokens_per_second or 0.0 for each in (shared, best))
    return (finer and grade(shared.choice.error_db) != grade(best.choice.error_db)) or rate > _FASTER * own


def _distinct(formats: Sequence[Storage]) -> list[Storage]:
    return list({storage_name(each): each for each in formats}.values())


def _on_devices(request: GroupRequest, formats: Sequence[Storage], attempt: Attempt, pick: Pick) -> list[Alternative]:
    """The best with the whole context, and with a shorter one where that keeps more of the weights."""
    found: list[Alternative] = []
    for context in contexts(request.context):
        best = _best(formats, request.group, context, attempt, pick)
        if best is None:
            continue
        if not found or best[0].error_db >= found[-1].choice.error_db + _WORTH_DB:
            found.append(_alternative(request, best[0], context))
        if len(found) == 2:
            break
    return found


def _split_with_cpu(
    request: GroupRequest, cpu: Device, formats: Sequence[Storage], attempt: Attempt, pick: Pick
) -> Alternative | None:
    for context in contexts(request.context):
        best = _best(formats, (*request.group, cpu), context, attempt, pick)
        if best is not None:
            choice, arrangement = best
            layers = sum(number for _, _, number in arrangement.parts)
            on_cpu = sum(number for _, device, number in arrangement.parts if device == cpu)
            return replace(_alternative(request, choice, context), on_cpu=on_cpu / layers) if on_cpu else None
    return None


def _best(
    formats: Sequence[Storage], group: Group, context: int, attempt: Attempt, pick: Pick
) -> tuple[Choice, Arrangement] | None:
    tried = [attempt(each, group, context) for each in formats]
    able = {id(arrangement): choice for choice, arrangement in tried if choice.verdict}
    if not able:
        return None
    best = pick([arrangement for _, arrangement in tried if id(arrangement) in able])
    return able[id(best)], best


def _alternative(request: GroupRequest, choice: Choice, context: int) -> Alternative:
    """Return a choice with its differences in words: ``q3_k_m instead of q8_0, 2,048 tokens of context``."""
    other_format = choice.format not in map(storage_name, request.formats)
    other_context = context != request.context
    changes = [_format_change(choice)] if other_format else []
    changes += [f"{count(context, 'token')} of context instead of {request.context:,}"] if other_context else []
    kept = not (request.named_formats and other_format) and not (request.named_context and other_context)
    change = " and ".join(changes) or "some layers on the CPU"
    return Alternative(group_id(request.group), choice, change, context, as_asked=kept)


def _format_change(choice: Choice) -> str:
    stored = storage(choice.format) if choice.format != "stored" else None
    base = stored if isinstance(stored, Format) or stored is None else stored.base
    return choice.format + (f" ({base.bits:.0f} bits)" if base is not None else "")
