"""From a name to the card that is simulated."""

from __future__ import annotations

from dataclasses import replace

from rung.core.errors import UsageError
from rung.core.text import parse_size
from rung.core.types import Device
from rung.hardware import catalog

#: Ids as plans have them; one card of a kind is simulated.
_IDS = {"cuda": "cuda:0", "rocm": "rocm:0", "xpu": "xpu:0", "mps": "mps"}


def describe(name: str | Device, memory: str | int | None = None, software: str | None = None) -> Device:
    """The device as a simulation has it: its id is that of the first of its kind, its memory what is free there.

    Raises ``UnknownDevice``, and ``UsageError`` for a processor, a size or a build that is none.
    """
    found = name if isinstance(name, Device) else catalog.device(name, software)
    if found.kind not in _IDS:
        raise UsageError(
            f"{found.name} is a processor; only GPUs are simulated.",
            ["torch computes on the processor that is here"],
            ["rung devices"],
        )
    if software is not None and isinstance(name, Device):
        raise UsageError(f"{found.name} comes with its software.", (), ['rung.device("p2200", software="torch 2.3")'])
    if memory is not None:
        found = replace(found, free=_bytes(memory))
    return replace(found, id=_IDS[found.kind], real=False)


def _bytes(memory: str | int) -> int:
    try:
        size = parse_size(str(memory))
    except ValueError as error:
        raise UsageError(f"memory={memory!r}: {error}", (), ['rung.simulate("p2200", memory="4GB")']) from error
    if size <= 0:
        raise UsageError(f"memory={memory!r}: a card has more than no memory.", (), ['memory="4GB"'])
    return size
