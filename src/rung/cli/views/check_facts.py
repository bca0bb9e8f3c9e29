"""What is behind a choice of ``rung check``, in words: for its text and for its page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rung.core.text import size
from rung.core.types import MemoryUse
from rung.planning.answer import Checkpointing, Choice, memory_json
from rung.planning.phases import PlannedPhase

#: Parts of memory that people call otherwise than scripts.
_NAMES = {"kv_cache": "KV cache", "optimizer": "optimiser"}


def facts(choice: Choice) -> dict[str, list[str]]:
    """Why, its memory and that of its phases, speed and error, each in pieces; what there is nothing of is left out."""
    found: dict[str, Sequence[str]] = {
        "why": [choice.verdict.reason] if choice.verdict.reason else [],
        "memory": [f"{_total(choice.memory)} of {size(choice.free)} free", *parts(choice.memory)],
        **{phase.name: _phase(phase) for phase in choice.phases},
        "activations": _ways(choice.checkpointing) if choice.checkpointing else (),
        "speed": [*choice.speeds, unsure(choice)] if choice.speeds else (),
        "error": [error(choice) + ("" if math.isinf(choice.error_db) else " below the weights")],
    }
    return {name: list(pieces) for name, pieces in found.items() if pieces}


def gist(choice: Choice) -> list[str]:
    """What its memory is made of, and how sure its speed is."""
    peak = [f"peak in {phase.name}" for phase in choice.phases if phase.memory == choice.memory]
    return [*peak[:1], *parts(choice.memory), *([f"speed {unsure(choice)}"] if choice.speeds else [])]


def parts(use: MemoryUse) -> list[str]:
    """``weights 2.5 GB`` and so on for all that is held."""
    held = {name: amount for name, amount in memory_json(use).items() if amount and name != "total"}
    return [f"{_NAMES.get(name, name)} {size(amount)}" for name, amount in held.items()]


def unsure(choice: Choice) -> str:
    """``± 50%``."""
    return f"± {choice.speed.uncertainty:.0%}"


def error(choice: Choice) -> str:
    """``45 dB``, or none."""
    decibels = choice.to_json()["error_db"]
    return "none" if decibels is None else f"{decibels:.0f} dB"


def _total(use: MemoryUse) -> str:
    """With the bound of its error, which must fit too."""
    return size(use.total) + (f", up to {size(use.bound)} more," if use.bound else "")


def _phase(phase: PlannedPhase) -> list[str]:
    held = [f"{name} in {way}" for name, way in phase.held.items()]
    return [_total(phase.memory).rstrip(","), *parts(phase.memory), *held]


def _ways(steps: Checkpointing) -> list[str]:
    ways = {"with gradient checkpointing": steps.lean, "without": steps.without}
    return [f"{size(use.activations)} {way} ({size(use.total)} in all)" for way, use in ways.items()]
