"""``rung check`` as a function: names of models and devices in, an answer out; never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware import occupants
from rung.hardware.select import Group, group_id, select_groups
from rung.models.lookup import find_known, find_outline
from rung.planning.check import check
from rung.planning.check_result import Answer, Choice, Pass, Question
from rung.planning.request import parse_memory

#: Of more devices than these, as of the whole catalog, nothing but what was asked for is tried.
_FEW = 16


def check_model(
    model: str,
    devices: str | Device | Sequence[str | Device] = (),
    *,
    device: str | Device | Sequence[str | Device] | None = None,
    format: str | Sequence[str] | None = None,
    software: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    fits: bool = False,
    offline: bool = False,
    revision: str | None = None,
    trace: bool = False,
    **options: Any,
) -> Answer:
    """Return the answer for one model on devices by name (default: this machine; ``fits``: the whole catalog).

    Of a model on the hub a few headers are fetched; ``options`` are the fields of ``Question``. ``device`` and
    ``format`` are the words of the command line for ``devices`` and ``formats``, one or several. ``trace`` builds its
    modules without weights, which imports torch and the library that they come from. Raises ``UsageError`` for an
    argument that does not exist, and what opening the model, naming devices and checking raise, with ``trace`` also
    what ``rung.engine.tracing`` raises.
    """
    _check_arguments(options)
    formats = _several(options.pop("formats", ())) + _several(format)
    question = Question(memory=parse_memory(memory), formats=formats, **options)
    named = [*_several(devices), *_several(device)]
    if fits and named:
        raise UsageError(
            "fits asks the whole catalog; device names devices: one or the other.", code="options-exclude-each-other"
        )
    for one in named:
        if not isinstance(one, str | Device):
            raise UsageError(f"device is a name or a rung.Device, not {one!r}.", (), ['device="p2200"', "rung devices"])
    groups = select_groups(named, software, fits)
    return answer_for(model, groups, question, trace=trace, offline=offline, revision=revision)


def _several(value: Any) -> tuple[Any, ...]:
    """Return one or several as several, None as none; what is neither is left for the one who reads it."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _check_arguments(options: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for names that are no fields of a question."""
    known = [field.name for field in fields(Question)]
    for name in options:
        if name not in known:
            likely = did_you_mean(name, [*known, "device", "format", "software", "fits", "trace", "offline"])
            raise UsageError(
                f"rung.check takes no argument {name!r}.{likely}", [f"it takes {', '.join(known)}"], code="name-unknown"
            )


def answer_for(
    model: str,
    groups: Sequence[Group],
    question: Question,
    *,
    trace: bool,
    offline: bool,
    revision: str | None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Answer:
    """The same for devices and a question that are known to make sense; ``on_note`` is told what a name left open."""
    passes: tuple[Pass, ...] = ()
    if not question.formats and (known := find_known(model)) is not None and known.format:
        question = replace(question, formats=(known.format,))
    if trace:
        from rung.engine.tracing import Modules

        modules = Modules()
        outline = find_outline(model, offline=offline, revision=revision, describing=modules.describe, on_note=on_note)
        passes = modules.passes(outline, question)
    else:
        outline = find_outline(model, offline=offline, revision=revision, on_note=on_note)
    few = len(groups) <= _FEW
    cpu = _cpu_for_layers(groups) if few else None
    return occupied(check(outline, groups, question, passes, cpu=cpu, alternatives=few), groups)


def _cpu_for_layers(groups: Sequence[Group]) -> Device | None:
    """The CPU here, where a card was asked about, which it could hold layers for."""
    named = [device for group in groups for device in group]
    here = next((device for device in named if device.kind == "cpu" and device.real), None)
    needed = any(device.kind != "cpu" for device in named)
    return here or (select_groups(("cpu",))[0][0] if needed else None)


def occupied(answer: Answer, groups: Sequence[Group]) -> Answer:
    """The answer with the processes in the way where a choice would fit on the idle device and does not now."""
    real = {group_id(group): group[0] for group in groups if len(group) == 1 and group[0].real}
    found: dict[str, tuple[FrozenDict[Any], ...]] = {}

    def named(choice: Choice) -> Choice:
        device = real.get(choice.device)
        if choice.fits or device is None or choice.free != device.budget:
            return choice
        if choice.memory.most > device.memory or device.free is None:
            return choice
        if device.id not in found:
            found[device.id] = occupants.of(device)
        return replace(choice, in_the_way=found[device.id])

    return replace(answer, choices=tuple(map(named, answer.choices)))
