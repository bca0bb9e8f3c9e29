"""Choices of an answer, each with its memory and its predicted speed, and what llama.cpp reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rung.core.text import count, rate, size
from rung.core.types import MemoryUse, Placement, PlanFrame, Verdict
from rung.core.value import FrozenDict, Value
from rung.formats.grades import grade
from rung.planning.answers.words import share_words
from rung.planning.pipeline import PlannedPhase

#: llama.cpp is named as the faster one from this factor on; without a figure for the card where rung reaches less than
#: this share of what the memory allows, of which llama.cpp reached 43 to 86 % on most cards.
_FASTER, _HALF = 1.1, 0.4


@dataclass(frozen=True)
class LlamaCpp(Value):
    """llama.cpp on the same card with the same weights: the command, and the speed where published figures tell it.

    ``command`` is empty where no weights are known that the program reads. ``tokens_per_second`` follows from the share
    of the card's bandwidth that was measured with ``measured`` and published at ``source``; both are empty, and the
    speed None, for cards without a figure.
    """

    command: str
    tokens_per_second: float | None = None
    measured: str = ""
    source: str = ""


@dataclass(frozen=True)
class Speed(Value):
    """Predicted tokens per second, None where there is no such thing; ``uncertainty`` is a share of them.

    ``reason`` says why there is none where there could be one; ``bound_tokens_per_second`` is what the memory allows at
    most while decoding; ``llama_cpp`` is that program on the same card; ``level`` that of the CPU instructions which it
    is computed with, empty where no CPU computes or where its level is not known; ``decodes`` where quantized weights
    are decoded before each product.
    """

    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    uncertainty: float
    prompt_tokens: int
    reason: str = ""
    bound_tokens_per_second: float | None = None
    llama_cpp: LlamaCpp | None = None
    level: str = ""
    decodes: bool = False

    @property
    def slower(self) -> bool:
        """Return whether llama.cpp is faster: by published figures, else where rung reaches less than half of the
        bound."""
        decode, peer = self.decode_tokens_per_second, self.llama_cpp
        if peer is None:
            return False
        if decode is None:
            return bool(self.reason)
        if peer.tokens_per_second is not None:
            return peer.tokens_per_second > _FASTER * decode
        return self.bound_tokens_per_second is not None and decode < self.bound_tokens_per_second * _HALF


@dataclass(frozen=True)
class Checkpointing(Value):
    """A training step that keeps all activations, and one ``lean`` by gradient checkpointing; ``taken``: the latter."""

    taken: bool
    without: MemoryUse
    lean: MemoryUse

    @property
    def memory(self) -> MemoryUse:
        """Return the memory of the chosen way."""
        return self.lean if self.taken else self.without

    @property
    def note(self) -> str:
        """The way that is taken in words."""
        return (
            f"with gradient checkpointing; {size(self.without.total)} without"
            if self.taken
            else "without checkpointing"
        )

    def to_json(self) -> dict[str, Any]:
        """Both ways as scripts read them: bytes of the activations, and in all."""
        ways = {"without": self.without, "with": self.lean}
        return {
            "taken": self.taken,
            **{name: {"activations": use.activations, "total": use.total} for name, use in ways.items()},
        }


@dataclass(frozen=True)
class Choice(PlanFrame):
    """One format on one device or group of devices.

    ``fits`` is about memory alone, ``verdict`` says whether it would run; ``level`` is yes, slow or no. ``free`` is
    the budget it was held against, over all its devices. ``error_db`` is infinite when nothing is lost.
    ``command`` runs it; None where ``rung run`` does not build the model, and for training, which alone has
    ``checkpointing``.
    """

    format: str
    device: str
    fits: bool
    level: str
    verdict: Verdict
    memory: MemoryUse
    free: int
    speed: Speed
    error_db: float
    command: str | None
    phases: tuple[PlannedPhase, ...] = ()
    in_the_way: tuple[FrozenDict[Any], ...] = field(default=())
    checkpointing: Checkpointing | None = None
    choices = ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Its devices together."""
        return (Placement(self.device, 0, 0, self.memory, self.free),)

    @property
    def column(self) -> str:
        """Return the value that tells choices of one device apart."""
        return self.format

    @property
    def speeds(self) -> tuple[str, ...]:
        """Return the predicted speeds in words; none for training."""
        prompt, found = count(self.speed.prompt_tokens, "token"), []
        if self.speed.decode_tokens_per_second is not None:
            found.append(f"{rate(self.speed.decode_tokens_per_second)} tokens/s after a prompt of {prompt}")
        if self.speed.prefill_tokens_per_second is not None:
            found.append(f"{rate(self.speed.prefill_tokens_per_second)} tokens/s while {prompt} are read")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """The choice as scripts read it."""
        lossless = math.isinf(self.error_db)
        result: dict[str, Any] = {
            "format": self.format,
            "device": self.device,
            "fits": self.fits,
            "level": self.level,
            "verdict": {"ok": self.verdict.ok, "reason": self.verdict.reason},
            "memory": self.memory.parts(),
            **({"checkpointing": self.checkpointing.to_json()} if self.checkpointing else {}),
            "free": self.free,
            "speed": self.speed.to_json(),
            "error_db": None if lossless else round(self.error_db, 1),
            "quality": grade(self.error_db),
            "command": self.command,
        }
        if self.phases:
            result["phases"] = [
                {
                    "name": phase.name,
                    "memory": phase.memory.parts(),
                    "held": {name: dict(vars(way)) for name, way in phase.held.items()},
                }
                for phase in self.phases
            ]
        if self.in_the_way:
            result["in_the_way"] = [dict(process) for process in self.in_the_way]
        return result


@dataclass(frozen=True)
class Alternative(Value):
    """A choice that runs in the place of those that were asked for; ``change`` says what is different.

    ``instead_of`` are the devices that were asked about; ``context`` is that of the choice; ``on_cpu`` the share of
    the layers that the CPU holds beside the card. ``as_asked``: every option that was given is kept, so that what is
    different was rung's to choose.
    """

    instead_of: str
    choice: Choice
    change: str
    context: int
    on_cpu: float = 0.0
    as_asked: bool = True

    @property
    def label(self) -> str:
        """Return the alternative in few words: ``q3_k_m (3 bits)``, ``half on the CPU with q8_0``."""
        return f"{share_words(self.on_cpu)} on the CPU with {self.choice.format}" if self.on_cpu else self.change

    def to_json(self) -> dict[str, Any]:
        """The alternative as scripts read it: a choice with what is different."""
        return {
            "instead_of": self.instead_of,
            "change": self.change,
            "context": self.context,
            "on_cpu": round(self.on_cpu, 3),
            "as_asked": self.as_asked,
            **self.choice.to_json(),
        }
