"""Hold what is asked of a plan; everything left out is chosen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rung.core.errors import UsageError
from rung.core.text import did_you_mean, parse_size, size
from rung.core.types import EMPTY, Device
from rung.core.value import FrozenDict, Value
from rung.models.decoder_memory import CACHE_TYPES

#: A number of bytes below this has lost its unit.
_LEAST = 2**20
#: A comma between digits, before a unit or the end: ``4,6GB``.
_DECIMAL_COMMA = re.compile(r"(?:^|[^,=]+=)\s*\d*,\d+\s*(?:[a-zA-Z]+|$)")


@dataclass(frozen=True)
class Typed(Value):
    """Hold what a person typed, for commands that ask again: the command, and model and device by the names they have
    there.

    ``device`` and ``software`` are None where they were left out; ``model`` is empty where the path is its name.
    """

    command: str = "rung run"
    model: str = ""
    device: str | None = None
    software: str | None = None


@dataclass(frozen=True)
class Request(Value):
    """``format`` a format's or a mixture's name; ``device`` a device id; ``memory`` bytes by device id, ``*`` for any;
    ``context`` and ``threads`` counts; ``cache_type`` what keys and values are stored in. None: rung chooses. Speed is
    predicted for a prompt of ``prompt_tokens``. ``reserved`` bytes of each budget are for what is no part of the model:
    adapters, of which ``rank`` is the highest. ``together``: the devices are one budget, their layers in that order.
    ``typed`` is what ways out repeat."""

    format: str | None = None
    device: str | None = None
    memory: FrozenDict[int] = EMPTY
    context: int | None = None
    threads: int = 1
    batch: int = 1
    prompt_tokens: int = 512
    reserved: int = 0
    together: bool = False
    typed: Typed = Typed()
    cache_type: str | None = None
    rank: int = 0

    def __post_init__(self) -> None:
        if self.cache_type is not None and self.cache_type not in CACHE_TYPES:
            raise UsageError(
                f"Keys and values are not stored in {self.cache_type!r}.{did_you_mean(self.cache_type, CACHE_TYPES)}",
                [f"they are stored in {', '.join(CACHE_TYPES)}; without the option, or with auto, rung chooses"],
                ["--cache-type q8_0"],
                code="name-unknown",
            )

    def budget(self, device: Device) -> int:
        """Bytes that the plan may use on a device: as many as were asked for, and no more than it has."""
        requested = _stated(self.memory, device)
        return (device.budget if requested is None else min(requested, most_memory(device))) - self.reserved

    def check_names(self, devices: Iterable[Device]) -> None:
        """Raises ``UsageError`` for a budget of a device that is not among these."""
        known = [device.id for device in devices]
        strangers = [name for name in self.memory if name != "*" and name not in known]
        if strangers:
            raise UsageError(
                f"--memory has a budget for {strangers[0]}, which is not among the devices.",
                [f"devices: {', '.join(known[:8])}{' ...' if len(known) > 8 else ''}"],
                [f"--memory {known[0]}=4GB"],
            )


def _stated(memory: Mapping[str, int], device: Device) -> int | None:
    return memory.get(device.id, memory.get("*"))


def most_memory(device: Device) -> int:
    """Return the bytes that a budget may name: all that the device has; of a card that is not here, what is free on
    an idle one."""
    return device.memory if device.real else device.budget


def above_memory(memory: Mapping[str, int], devices: Iterable[Device]) -> str:
    """Return a sentence for each device that has less than its budget, of which all is counted; else nothing."""
    found: dict[str, None] = {}
    for device in devices:
        requested, most = _stated(memory, device), most_memory(device)
        if requested is not None and requested > most:
            found[f"{device.name} has less than --memory {size(requested)}: {size(most)} is counted there."] = None
    return " ".join(found)


#: A budget of every device, those of some by name, or None; sizes in bytes or in words (``4GB``).
Memory = str | int | Mapping[str, str | int] | None


def parse_memory(memory: Memory) -> FrozenDict[int]:
    """Return budgets from ``4.6GB``, ``cuda:0=4GB,cpu=8GB``, a number of bytes, or a mapping of those.

    Raises ``UsageError`` with the right spelling for what is no size, or an unclear one: ``4,6GB``, ``4.6``.
    """
    if memory is None:
        return EMPTY
    if not isinstance(memory, Mapping):
        memory = {"*": memory}
    found: dict[str, int] = {}
    for name, value in memory.items():
        for device, text in _pairs(name, value):
            if device in found:
                whose = "all devices" if device == "*" else device
                raise _unclear(f"{value!r} gives {whose} two budgets.", "cuda:0=4GB,cpu=8GB")
            found[device] = _bytes(device, text)
    return FrozenDict(found)


def _pairs(name: str, value: object) -> list[tuple[str, object]]:
    """Return the devices and sizes of one budget; a text may hold several, divided by commas."""
    if not isinstance(value, str):
        return [(name, value)]
    if comma := _DECIMAL_COMMA.search(value):
        why = "a comma divides budgets, a point decimals"
        raise _unclear(f"{value!r} is unclear: {why}.", _spelled(comma[0]))
    parts = [part.rpartition("=") for part in value.split(",")] if name == "*" else [(name, "", value)]
    return [(device.strip() or "*", text) for device, _, text in parts]


def _bytes(device: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _unclear(f"A budget is a text like '4.6GB' or a whole number of bytes, not {value!r}.", "4.6GB")
    text, before = str(value), "" if device == "*" else f"{device}="
    try:
        count = parse_size(text)
    except ValueError as error:
        raise _unclear(f"{error}.", before + _spelled(text)) from error
    if count < _LEAST and not re.search("[a-zA-Z]", text):
        raise _unclear(f"{text.strip()} what? A number without a unit is bytes.", before + _spelled(text))
    return count


def _spelled(text: str) -> str:
    """Return a misspelled size as ``--memory`` takes it: ``4.6GB`` for ``4,6 gigs``."""
    before, equals, size = text.rpartition("=")
    found = re.search(r"(\d+(?:[.,]\d+)?|[.,]\d+)\s*([kmgt]?)", size.lower())
    if found is None or not re.search("[1-9]", found[1]):
        return f"{before}{equals}4.6GB"
    thousands = len(found[1].partition(",")[2]) == 3
    number = found[1].replace(",", "" if thousands else ".")
    return f"{before}{equals}{number}{(found[2] or 'g').upper()}B"


def _unclear(cause: str, meant: str) -> UsageError:
    return UsageError(f"--memory: {cause}", (), [f"--memory {meant}"])
