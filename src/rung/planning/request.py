"""What is asked of a plan; everything left out is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rung.core.errors import UsageError
from rung.core.text import parse_size
from rung.core.types import EMPTY, Device
from rung.core.value import FrozenDict, Value


@dataclass(frozen=True)
class Request(Value):
    """``format`` a format's or a mixture's name; ``device`` a device id; ``memory`` bytes by device id, ``*`` for any;
    ``context`` and ``threads`` counts. None: rung chooses. Speed is predicted for a prompt of ``prompt_tokens``.
    ``beside`` bytes of each budget are for what is no part of the model: adapters."""

    format: str | None = None
    device: str | None = None
    memory: FrozenDict[int] = EMPTY
    context: int | None = None
    threads: int = 1
    batch: int = 1
    prompt_tokens: int = 512
    beside: int = 0

    def budget(self, device: Device) -> int:
        """Bytes that the plan may use on a device: as many as were asked for, and no more than it has."""
        asked = self.memory.get(device.id, self.memory.get("*"))
        return (device.budget if asked is None else min(asked, device.memory)) - self.beside

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


def parse_memory(asked: str | int | Mapping[str, str | int] | None) -> FrozenDict[int]:
    """Budgets from ``4.6GB``, ``cuda:0=4GB,cpu=8GB``, a number of bytes, or a mapping of those.

    Raises ``UsageError`` for what is no size.
    """
    if asked is None:
        return EMPTY
    if isinstance(asked, int):
        asked = {"*": asked}
    if isinstance(asked, str):
        pairs = [part.rpartition("=") for part in asked.split(",")]
        asked = {name.strip() or "*": text for name, _, text in pairs}
    try:
        return FrozenDict({name: parse_size(str(text)) for name, text in asked.items()})
    except ValueError as error:
        raise UsageError(f"--memory: {error}", (), ["--memory 4.6GB", "--memory cuda:0=4GB,cpu=8GB"]) from error
