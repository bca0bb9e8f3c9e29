"""From a name to the card that is simulated."""

from __future__ import annotations

from dataclasses import replace

from rung.core.errors import UsageError
from rung.core.types import Device
from rung.hardware import catalog

#: Ids as plans have them; one card of a kind is simulated.
_IDS = {"cuda": "cuda:0", "rocm": "rocm:0", "xpu": "xpu:0", "mps": "mps"}


def describe(name: str | Device, memory: str | int | None = None, software: str | None = None) -> Device:
    """The device as a simulation has it: its id is that of the first of its kind; ``memory`` is free on it, all of it.

    Raises ``UnknownDevice``, and ``UsageError`` for a processor, a size or a build that is none.
    """
    if isinstance(name, Device):
        if memory is not None or software is not None:
            raise UsageError(
                "memory and software are for a name of the catalogue, not for a device that is described already.",
                [f"{name.name} has {name.memory} bytes and its software"],
                ['rung.simulate("p2200", memory="4GB")', "dataclasses.replace(device, free=...)"],
            )
        found = name
    else:
        found = catalog.device(name, software, memory)
    if found.kind not in _IDS:
        raise UsageError(
            f"{found.name} is a processor; only GPUs are simulated.",
            ["torch computes on the processor that is here"],
            ["rung devices"],
        )
    if memory is not None:
        found = replace(found, free=found.memory)
    return replace(found, id=_IDS[found.kind], real=False)
