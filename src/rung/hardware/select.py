"""From what a person typed to devices: the only place that decides what the name of a device means.

A name is an id of this machine (``cuda:0``, ``cpu``), a card of the catalog (``p2200`` or ``sim:p2200``), the same
through WebGPU (``p2200 webgpu``), the path of a device file, or several of these as one budget (``3090+3060``,
``2x3090``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rung.core.errors import UnknownDevice, UsageError
from rung.core.text import quoted
from rung.core.types import Device
from rung.hardware import catalog, detect

#: Devices that share one budget; mostly one.
Group = tuple[Device, ...]

#: Ids of devices of this machine; every other name is one of the catalog.
_ID = re.compile(r"(?:cpu|cuda|rocm|xpu|mps|webgpu)(?::\d+)?")

#: A card of the catalog through WebGPU: ``p2200 webgpu``.
_THROUGH = re.compile(r"(.+?)[ -]webgpu")


def is_id(name: str) -> bool:
    """Return whether ``name`` is an id of a device of a machine (``cuda:0``) and no card of the catalog."""
    return _ID.fullmatch(name) is not None


def group_id(group: Group) -> str:
    """Return ``cuda:0``, or ``3090+3060`` for one budget of several."""
    return "+".join(device.id for device in group)


def absent(name: str, here: Iterable[Device]) -> UnknownDevice:
    """Return the error for a device that this machine does not have."""
    facts = [f"devices here: {', '.join(device.id for device in here)}"]
    if name.startswith("webgpu") and not any(device.kind == "webgpu" for device in here):
        from rung.hardware.families import webgpu

        facts.append(f"WebGPU: {webgpu.absence()}")
    return UnknownDevice(f"There is no device {name!r} here.", facts, ["rung devices", "rung devices --catalog"])


def catalog_device(name: str) -> Device | None:
    """Return the card of the catalog, or of a device file, that ``name`` means.

    None for a device of this machine and for an unknown name. Raises ``UnknownDevice`` for ``sim:`` and an unknown
    name.
    """
    if name.startswith("sim:") or name.endswith(".toml") or _THROUGH.fullmatch(name):
        return _of_catalog(name)
    here = detect.devices(cached=False, software_adapters=True)
    if any(name in (device.id, device.kind) for device in here) or catalog.find(name) is None:
        return None
    return catalog.device(name)


def _of_catalog(name: str, software: str | None = None) -> Device:
    """The device of the catalog: a card, or one through WebGPU."""
    through = _THROUGH.fullmatch(name)
    if through is None:
        return catalog.device(name, software)
    from rung.hardware.families import webgpu

    card = catalog.device(through[1])
    if software is not None:
        raise UsageError(
            "--software is about builds of torch, and through WebGPU none computes.",
            ways_out=[f'--device {quoted(through[1])} --software "{software}"'],
            code="option-without-effect",
        )
    if (found := webgpu.reached(card)) is None:
        raise UnknownDevice(
            f"{card.name} is not reached through WebGPU.",
            ["no driver of Vulkan, Metal or DirectX 12 is made for it"],
            [f"rung devices {quoted(through[1])}"],
        )
    return found


def select_device(name: str | None, software: str | None = None) -> Device:
    """Return the device of this machine with that id (default: the CPU), else the one of the catalog.

    Raises ``UnknownDevice``, ``UsageError`` for ``software`` with a device that is here, ``BadFile`` for a device
    file.
    """
    if name is not None and not is_id(name):
        return _of_catalog(name, software)
    here = detect.devices(software_adapters=True)
    device = _is_here(name or "cpu", here)
    if device is None:
        raise absent(name or "cpu", here)
    if software is not None:
        raise UsageError(
            f"{device.id} is here and has the software that is installed; --software goes with the catalog.",
            ways_out=[f'rung devices p2200 --software "{software}"'],
            code="option-without-effect",
        )
    return device


def select_groups(names: Sequence[str | Device], software: str | None = None, fits: bool = False) -> list[Group]:
    """Return the groups of names, without names the devices of this machine, with ``fits`` all of the catalog.

    A software adapter has to be named.

    Names of the same device are one group. Raises ``UnknownDevice``, ``UsageError`` for two devices with one id and for
    devices that share no layers.
    """
    if fits:
        return [(catalog.device(product.name, software),) for product in catalog.products()]
    here = _here(software_adapters=bool(names))
    if software is not None and (not names or any(isinstance(n, Device) or _is_here(n, here) for n in names)):
        raise UsageError(
            "--software goes with names of the catalog; a device that is here has the software that is installed.",
            ways_out=[f"--device p2200 --software {quoted(software)}"],
            code="option-without-effect",
        )
    if not names:
        return [(device,) for device in here]
    found: dict[str, Group] = {}
    for name in names:
        for group in ((name,),) if isinstance(name, Device) else _machine(name, here, software):
            if found.setdefault(group_id(group), group) != group:
                raise UsageError(
                    f"Two different devices are called {group_id(group)}.",
                    ["answers are kept by id"],
                    [
                        "rung.check(model, [one]) and rung.check(model, [other])",
                        'dataclasses.replace(device, id="...")',
                    ],
                )
    return list(found.values())


def _machine(name: str, here: Sequence[Device], software: str | None) -> list[Group]:
    """Return the group of a name; of one that means a whole machine (``m1``, ``steam deck``) its GPU, then its CPU."""
    group = _group(name, here, software)
    suggestion = f"{name} cpu"
    if len(group) > 1 or group[0].real or group[0].kind == "cpu" or (found := catalog.find(suggestion)) is None:
        return [group]
    return [group, (catalog.device(suggestion),)] if found.cores else [group]


def _here(software_adapters: bool = False) -> tuple[Device, ...]:
    """The devices of this machine, as if torch and numba were installed where they are not and would compute."""
    found = detect.devices(software_adapters=software_adapters)
    installed = next(device for device in found if device.kind == "cpu").software
    missing = {name: "not installed" for name in ("torch", "numba") if name not in installed}
    return tuple(_with(device, missing) for device in found)


def _with(device: Device, missing: Mapping[str, str]) -> Device:
    """The device with packages that are not installed, those that could compute there."""
    usable = {name: at for name, at in missing.items() if name != "torch" or device.torch_computes}
    return replace(device, software=device.software | usable)


def _group(name: str, here: Sequence[Device], software: str | None) -> Group:
    found = [_one(each, here, software) for each in catalog.several(name)]
    ids = [device.id for device in found]
    if here_twice := next((d.id for d in found if d.real and ids.count(d.id) > 1), None):
        raise UsageError(
            f"{name} counts {here_twice} twice, which is here once.", [], [f"--device {here_twice}", "rung devices"]
        )
    kinds = [device.kind for device in found if device.kind != "cpu"]
    if "webgpu" in kinds and sorted(device.kind for device in found) not in (["webgpu"], ["cpu", "webgpu"]):
        raise UsageError(
            f"{name} is no budget: a device of WebGPU shares layers with the processor alone.",
            [f"they are of the kinds {', '.join(device.kind for device in found)}"],
            ["--device A --device B   # asks about each by itself"],
        )
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
    if is_id(name):
        raise absent(name, here)
    return _of_catalog(name, software)


def _is_here(name: str, here: Sequence[Device]) -> Device | None:
    """The device of this machine that goes by that name."""
    for device in here:
        if name == device.id or (name == device.kind and device.id.endswith((":0", device.kind))):
            return device
    return None
