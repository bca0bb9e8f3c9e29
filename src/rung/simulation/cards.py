"""From names to the cards that are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rung.core.errors import UsageError
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.hardware.select import is_id
from rung.kernels.cuda import fibers

#: Ids as plans have them, with the number of the card after it; a Mac has one GPU.
_IDS = {"cuda": "cuda:{}", "rocm": "rocm:{}", "xpu": "xpu:{}", "mps": "mps"}

#: A simulated card computes by torch's operations on the processor; what Triton compiles has nothing to run on.
_NO_TRITON = Capability("package.triton", Level.ABSENT, Proof.DECLARED, "a simulated card runs no compiled GPU code")


def describe(
    names: Sequence[str | Device], memory: str | int | None = None, software: str | None = None
) -> tuple[Device, ...]:
    """The devices as a simulation has them, numbered in their order; ``memory`` is free on each, all of it.

    A name may stand for several: ``2x3090``, ``3090+3060``. Without ``software`` they have the newest torch that
    carries code for all. Raises ``UnknownDevice``, and ``UsageError`` for a processor, cards that no one torch drives,
    a size or a build that is none.
    """
    chosen = [one for name in names for one in (catalog.several(name) if isinstance(name, str) else [name])]
    if not chosen:
        raise UsageError("No card to simulate is named.", ways_out=['rung.simulate("p2200")', "rung devices --catalog"])
    found = _built([_described(one, memory, software) for one in chosen], software)
    for device in found:
        if device.kind not in _IDS:
            raise UsageError(
                f"{device.name} is a processor; only GPUs are simulated.",
                ["torch computes on the processor that is here"],
                ["rung devices"],
            )
    if len(found) > 1:
        _together(found)
    if memory is not None:
        found = [replace(device, free=device.memory) for device in found]
    found = [_without_compilers(device.with_capabilities([_NO_TRITON])) for device in found]
    return tuple(replace(d, id=_IDS[d.kind].format(index), real=False) for index, d in enumerate(found))


def _without_compilers(device: Device) -> Device:
    """The device without what compiles CUDA C, where nothing builds such kernels for the processor instead."""
    if fibers.compiler():
        return device
    kept = {name: version for name, version in device.software.items() if name not in ("nvrtc", "hiprtc")}
    return replace(device, software=FrozenDict(kept))


def _described(name: str | Device, memory: str | int | None, software: str | None) -> Device:
    if not isinstance(name, str | Device) or (isinstance(name, str) and is_id(name.removeprefix("sim:"))):
        raise UsageError(
            f"{name!r} names no card of the catalog.",
            ["cpu, cuda:0 and the like are devices of a machine; a simulation is of a card by its name"],
            ['rung.simulate("p2200")', "rung devices --catalog"],
        )
    if isinstance(name, str):
        return catalog.device(name, software, memory)
    if memory is not None or software is not None:
        raise UsageError(
            "memory and software are for a name of the catalog, not for a device that is described already.",
            [f"{name.name} has {name.memory} bytes and its software"],
            ['rung.simulate("p2200", memory="4GB")', "dataclasses.replace(device, free=...)"],
        )
    return name


def _built(found: list[Device], software: str | None) -> list[Device]:
    """The devices with one build of torch: of those that they have, the first with code for all."""
    builds = dict.fromkeys(str(device.details.get("build", "")) for device in found)
    if software is not None or len(builds) == 1 or not all(builds):
        return found
    for build in builds:
        alike = [replace(catalog.device(d.name, build), memory=d.memory, free=d.free) for d in found]
        if all(device.capability("code").level is not Level.ABSENT for device in alike):
            return alike
    return found


def _together(found: Sequence[Device]) -> None:
    """Raises ``UsageError`` when no single torch drives them all."""
    names = " and ".join(dict.fromkeys(device.name for device in found))
    kinds = {device.kind for device in found}
    if len(kinds) > 1 or kinds == {"mps"}:
        raise UsageError(
            f"{names} cannot be simulated together: one torch drives GPUs of one maker, and one GPU of a Mac.",
            [f"{device.name} is of the kind {device.kind}" for device in found],
            ["one simulation after the other"],
        )
    if len({device.software.get("torch") for device in found}) > 1:
        raise UsageError(
            f"{names} cannot be simulated together: no release of torch has code for all.",
            [f"{device.name}: {device.details.get('build', 'no build')}" for device in found],
            ['rung.simulate(..., software="torch 2.3+cu121")', "one simulation after the other"],
        )
