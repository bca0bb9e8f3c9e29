"""Settings of what a pipeline makes, as a person chooses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rung.core.value import Value


@dataclass(frozen=True)
class Settings(Value):
    """Hold what is made; None: as the pipeline has it. ``size`` is (width, height) in pixels."""

    prompt: str
    negative: str | None = None
    frames: int | None = None
    size: tuple[int, int] | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int = 0
    scheduler: str | None = None

    def chosen(self) -> dict[str, Any]:
        """Return those that were chosen, for the file."""
        return {name: value for name, value in vars(self).items() if value is not None}

    told = chosen  # its name in 0.1
