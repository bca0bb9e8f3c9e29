"""``rung check`` as a function: names of models and devices in, an answer out; never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.core.errors import UsageError
from rung.core.settings import OFFLINE
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.engine import system
from rung.engine.locating import DEMO, demo_path
from rung.hardware import catalog, detect, occupants
from rung.models.outline import Describe, open_outline
from rung.models.outlines.component import describe
from rung.models.outlines.values import Outline
from rung.planning.answer import Answer, Choice, Pass, Question
from rung.planning.check import Group, check, group_id
from rung.planning.request import parse_memory


def check_model(
    model: str,
    devices: Sequence[str | Device] = (),
    *,
    software: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    fits: bool = False,
    offline: bool = False,
    revision: str | None = None,
    trace: bool = False,
    **asked: Any,
) -> Answer:
    """The answer for one model on devices by name (default: this machine; ``fits``: the whole catalogue).

    Of a model on the hub a few headers are fetched; ``asked`` are the fields of ``Question``. ``trace`` builds its
    modules without weights, which imports torch and the library that they come from. Raises what opening the
    model, naming devices and checking raise, with ``trace`` also what ``rung.engine.tracing`` raises.
    """
    question = Question(memory=parse_memory(memory), **asked)
    groups = catalogue(software) if fits else groups_of(devices, software)
    passes: tuple[Pass, ...] = ()
    if trace:
        from rung.engine.tracing import Modules

        modules = Modules()
        outline = outline_of(model, offline=offline, revision=revision, describing=modules.describe)
        passes = modules.passes(outline, question)
    else:
        outline = outline_of(model, offline=offline, revision=revision)
    return occupied(check(outline, groups, question, passes), groups)


def outline_of(
    name: str, *, offline: bool = False, revision: str | None = None, describing: Describe = describe
) -> Outline:
    """The outline of ``demo``, a file, a folder, a configuration or a hub name; only headers are read."""
    if name == DEMO and not Path(name).exists():
        return open_outline(demo_path())
    return open_outline(name, offline=bool(offline or OFFLINE.read()), revision=revision, describing=describing)


def catalogue(software: str | None) -> list[Group]:
    """Every product of the catalogue by itself."""
    return [(catalog.device(product.name, software),) for product in catalog.products()]


def groups_of(names: Sequence[str | Device], software: str | None = None) -> list[Group]:
    """One group a name: a device here, a card of the catalogue, ``A+B`` or ``2xA`` for one budget of several.

    Raises ``UnknownDevice``, ``UsageError`` for a name that is given twice.
    """
    here = _here()
    if not names:
        return [(device,) for device in here]
    groups = [(name,) if isinstance(name, Device) else _group(name, here, software) for name in names]
    ids = [group_id(group) for group in groups]
    twice = next((one for number, one in enumerate(ids) if one in ids[:number]), None)
    if twice:
        raise UsageError(f"The device {twice} is named twice.", ways_out=["name it once, or 2xNAME for two of a kind"])
    return groups


def _here() -> tuple[Device, ...]:
    """The devices of this machine, as if torch and numba were installed where they are not."""
    missing = dict.fromkeys(system.missing_software(), "not installed")
    return tuple(replace(device, software=device.software | missing) for device in detect.devices())


def _group(name: str, here: Sequence[Device], software: str | None) -> Group:
    found = [_one(wanted, here, software) for wanted in catalog.several(name)]
    ids = [device.id for device in found]
    if len(found) > 1:  # budgets are kept by id
        found = [
            replace(d, id=f"{d.id}:{ids[:n].count(d.id)}" if ids.count(d.id) > 1 else d.id) for n, d in enumerate(found)
        ]
    return tuple(found)


def _one(name: str, here: Sequence[Device], software: str | None) -> Device:
    if software is None:
        for device in here:
            if name == device.id or (name == device.kind and device.id.endswith((":0", device.kind))):
                return device
    return catalog.device(name, software)


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
