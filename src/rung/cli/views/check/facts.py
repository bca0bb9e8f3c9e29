"""Hold what is behind a choice of ``rung check``, in words: for its text and for its page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rung.core.text import rate, size
from rung.core.types import MemoryUse
from rung.formats.grades import grade
from rung.planning.check_result import Checkpointing, Choice
from rung.planning.pipeline import PlannedPhase

#: Parts of memory that people call otherwise than scripts.
_NAMES = {"kv_cache": "KV cache"}


def facts(choice: Choice) -> dict[str, list[str]]:
    """Why, its memory and that of its phases, speed and error, each in pieces; what there is nothing of is left out."""
    found: dict[str, Sequence[str]] = {
        "why": [choice.verdict.reason] if choice.verdict.reason else [],
        "memory": [f"{_total(choice.memory)} of {size(choice.free)} free", *parts(choice.memory)],
        **{phase.name: _phase(phase) for phase in choice.phases},
        "activations": _ways(choice.checkpointing) if choice.checkpointing else (),
        "speed": [*choice.speeds, *_bound(choice), unsure(choice), *_level(choice)]
        if choice.speeds
        else _bound(choice),
        "llama.cpp": _llama_cpp(choice),
        "quality": [grade(choice.error_db), *([] if math.isinf(choice.error_db) else [error(choice)])],
    }
    return {name: list(pieces) for name, pieces in found.items() if pieces}


def gist(choice: Choice) -> list[str]:
    """Return the parts of the memory, and how sure the speed is."""
    peak = [f"peak in {phase.name}" for phase in choice.phases if phase.memory == choice.memory]
    speed = [f"speed {unsure(choice)}", *_level(choice)] if choice.speeds else []
    return [*peak[:1], *parts(choice.memory), *speed]


def parts(use: MemoryUse) -> list[str]:
    """``weights 2.5 GB`` and so on for all that is held."""
    nonzero = {name: amount for name, amount in use.parts().items() if amount and name != "total"}
    return [f"{_NAMES.get(name, name)} {size(amount)}" for name, amount in nonzero.items()]


def unsure(choice: Choice) -> str:
    """``± 50%``."""
    return f"± {choice.speed.uncertainty:.0%}"


def _level(choice: Choice) -> list[str]:
    return [f"runs at level {choice.speed.level}"] if choice.speed.level else []


def error(choice: Choice) -> str:
    """``noise 45 dB below the weights``."""
    return f"noise {round(choice.error_db, 1):.0f} dB below the weights"


def slower_why(choice: Choice) -> str:
    """Return why rung is slow with that choice: ``with q8_0 rung reaches 6.7 of the 77 tokens/s that the memory
    allows``."""
    speed = choice.speed
    if speed.decode_tokens_per_second is None:
        return speed.reason
    most = speed.bound_tokens_per_second
    formats = "the stored formats" if choice.format == "stored" else choice.format
    reached = f"with {formats} rung reaches {rate(speed.decode_tokens_per_second)}"
    reached += f" of the {rate(most)} tokens/s that the memory allows" if most else " tokens/s"
    return f"{reached}, since it decodes the weights before each product there" if speed.decodes else reached


def llama_cpp_words(choice: Choice) -> str:
    """Return llama.cpp's speed there, as far as published figures tell."""
    peer = choice.speed.llama_cpp
    if peer is None or peer.tokens_per_second is None:
        most = choice.speed.bound_tokens_per_second
        allowed = f", and the memory allows {rate(most)} tokens/s" if most and choice.speed.reason else ""
        return f"llama.cpp multiplies such weights as they are stored{allowed}"
    return f"llama.cpp reaches about {peer.tokens_per_second:g}"


def _bound(choice: Choice) -> list[str]:
    most = choice.speed.bound_tokens_per_second
    return [f"the memory allows {rate(most)}"] if most else []


def _llama_cpp(choice: Choice) -> list[str]:
    """Return llama.cpp's lines: its speed where figures are published, with their source, and the command."""
    peer = choice.speed.llama_cpp
    if peer is None:
        return []
    command = [peer.command] if peer.command else []
    if peer.tokens_per_second is None:
        return command
    source = f"from {peer.measured} on this card, {peer.source}"
    return [f"about {peer.tokens_per_second:g} tokens/s", source, *command]


def _total(use: MemoryUse) -> str:
    """With the bound of its error, which must fit too."""
    return size(use.total) + (f", up to {size(use.bound)} more," if use.bound else "")


def _phase(phase: PlannedPhase) -> list[str]:
    storage = [f"{name} in {way}" for name, way in phase.held.items()]
    return [_total(phase.memory).rstrip(","), *parts(phase.memory), *storage]


def _ways(steps: Checkpointing) -> list[str]:
    ways = {"with gradient checkpointing": steps.lean, "without": steps.without}
    return [f"{size(use.activations)} {way} ({size(use.total)} in all)" for way, use in ways.items()]
