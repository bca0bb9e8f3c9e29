"""The arguments and the findings of a part of the suite."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rung.core.types import Device

ROOT = Path(__file__).parents[2]


class Check(NamedTuple):
    """One thing that was looked at: whether it holds (None where it is measured only) and what was found."""

    name: str
    holds: bool | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The device by the name that was typed, with small shapes or real ones, and where files go."""

    name: str
    small: bool
    folder: Path

    @cached_property
    def device(self) -> Device:
        """Return the device as it was probed."""
        from rung.hardware.select import select_device
        from rung.run.probe import probe

        return probe(select_device(self.name))

    @property
    def is_cpu(self) -> bool:
        """Return whether it is this machine's processor."""
        return self.device.kind == "cpu"


def share(part: float, whole: float) -> float:
    """Return a ratio, rounded for people; 0 for a ratio to nothing."""
    return round(part / whole, 3) if whole else 0.0
