"""The devices that ``rung check`` is asked about, by name, and what is in the way on those that are here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.engine import system
from rung.hardware import catalog, detect, named, occupants
from rung.planning.answer import Answer, Choice
from rung.planning.devices import Group, group_id


def asked_about(names: Sequence[str | Device], software: str | None, fits: bool) -> list[Group]:
    """What a question is about: the devices of these names, this machine when none, or with ``fits`` every product of
    the catalogue by itself. Raises what ``groups_of`` raises."""
    if fits:
        return [(catalog.device(product.name, software),) for product in catalog.products()]
    return groups_of(names, software)


def groups_of(names: Sequence[str | Device], software: str | None = None) -> list[Group]:
    """One group a name: a device here, a card of the catalogue, ``A+B`` or ``2xA`` for one budget of several.

    Names of the same are one group. Raises ``UnknownDevice``, ``UsageError`` for two devices with one id and for GPUs
    that no one program drives.
    """
    here = _here()
    if software is not None and (not names or any(isinstance(n, Device) or _is_here(n, here) for n in names)):
        raise UsageError(
            "--software goes with names of the catalogue; a device that is here has the software that is installed.",
            ways_out=[f"--device p2200 --software {quoted(software)}"],
        )
    if not names:
        return [(device,) for device in here]
    found: dict[str, Group] = {}
    for name in names:
        group: Group = (name,) if isinstance(name, Device) else _group(name, here, software)
        if found.setdefault(group_id(group), group) != group:
            raise UsageError(
                f"Two different devices are called {group_id(group)}.",
                ["answers are kept by id"],
                ["rung.check(model, [one]) and rung.check(model, [other])", 'dataclasses.replace(device, id="...")'],
            )
    return list(found.values())


def _here() -> tuple[Device, ...]:
    """The devices of this machine, as if torch and numba were installed where they are not."""
    missing = dict.fromkeys(system.missing_software(), "not installed")
    return tuple(replace(device, software=device.software | missing) for device in detect.devices())


def _group(name: str, here: Sequence[Device], software: str | None) -> Group:
    found = [_one(wanted, here, software) for wanted in catalog.several(name)]
    ids = [device.id for device in found]
    if here_twice := next((d.id for d in found if d.real and ids.count(d.id) > 1), None):
        raise UsageError(
            f"{name} counts {here_twice} twice, which is here once.", [], [f"--device {here_twice}", "rung devices"]
        )
    kinds = [device.kind for device in found if device.kind != "cpu"]
    if len(set(kinds)) > 1 or kinds.count("mps") > 1:
        raise UsageError(
            f"{name} is no budget: one torch drives GPUs of one maker, and one GPU of a Mac.",
            [f"they are of the kinds {', '.join(kinds)}"],
            ["--device A --device B   # asks about each by itself"],
        )
    if len(found) > 1:  # budgets are kept by id
        found = [
            replace(d, id=f"{d.id}:{ids[:n].count(d.id)}" if ids.count(d.id) > 1 else d.id) for n, d in enumerate(found)
        ]
    return tuple(found)


def _one(name: str, here: Sequence[Device], software: str | None) -> Device:
    if found := _is_here(name, here):
        return found
    if named.is_id(name):
        raise named.absent(name, here)
    return catalog.device(name, software)


def _is_here(name: str, here: Sequence[Device]) -> Device | None:
    """The device of this machine that goes by that name."""
    for device in here:
        if name == device.id or (name == device.kind and device.id.endswith((":0", device.kind))):
            return device
    return None


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
