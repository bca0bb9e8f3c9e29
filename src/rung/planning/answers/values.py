"""Choices of an answer, each with its memory and its predicted speed, and what llama.cpp reaches."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from rung.core.text import count, rate, size
from rung.core.types import Device, MemoryUse, Placement, PlanFrame, Verdict
from rung.core.value import FrozenDict, Value
from rung.formats.table import grade
from rung.hardware.catalog import llama_cpp
from rung.models.networks.values import Outline
from rung.models.store.starters import find as find_starter
from rung.planning.gguf_mixtures import LLAMA_CPP
from rung.planning.network_spec import Subject
from rung.planning.pipeline import PlannedPhase
from rung.planning.placement import Arrangement
from rung.planning.speed import bound

#: First letters of names in capitals that are spoken with a vowel: an RTX 3090, an H100, an MI60.
_SPOKEN = "AEFHILMNORSX"


#: Shares of the layers on the CPU, in words.
_SHARES = (
    (0.15, "partly"),
    (0.3, "a quarter"),
    (0.42, "a third"),
    (0.58, "half"),
    (0.8, "two thirds"),
    (1.1, "mostly"),
)


def group_key(group: Sequence[Device]) -> str:
    """Return the key of a group in an answer."""
    return "+".join(device.id for device in group)


def group_name(group: Sequence[Device]) -> str:
    """Return ``Quadro P2200``, ``2 x GeForce RTX 3090``, ``Quadro P2200 + this CPU``."""
    names: dict[str, int] = {}
    for device in group:
        name = "this CPU" if device.kind == "cpu" and device.real and len(group) > 1 else device.name
        names[name] = names.get(name, 0) + 1
    return " + ".join(name if number == 1 else f"{number} x {name}" for name, number in names.items())


def devices_phrase(group: Sequence[Device]) -> str:
    """Return the devices in a sentence: ``a Quadro P2200``, ``this machine's CPU (AMD EPYC)``."""
    if len(group) > 1:
        return group_name(group)
    device = group[0]
    if not device.real:
        return f"{article(device.name)} {device.name}"
    return f"this machine's CPU ({device.name})" if device.kind == "cpu" else f"this machine's {device.name}"


def article(name: str) -> str:
    """Return ``a`` or ``an``, as the name is spoken.

    >>> [article(name) for name in ("Quadro P2200", "RTX A6000", "Apple M4", "Xeon 6980P", "Tesla T4", "H200")]
    ['a', 'an', 'an', 'a', 'a', 'an']
    """
    first = name.split()[0] if name.split() else ""
    capitals = first.upper() == first
    return "an" if first[:1] in (_SPOKEN if capitals else "AEIO") else "a"


def share_words(on_cpu: float) -> str:
    """Return a share of the layers in words: ``half``, ``two thirds``."""
    return next(words for most, words in _SHARES if on_cpu < most)


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


#: The file type of llama.cpp for a format that is none of its own, or that its files mix with others.
_FILE_TYPES = {
    **dict.fromkeys(("int8", "llm_int8"), "Q8_0"),
    **{name: name.upper() for name in ("f16", "bf16", "f32", "q8_0", "q6_k", *LLAMA_CPP)},
    **dict.fromkeys(("nf4", "fp4", "q4_k"), "Q4_K_M"),
    "q5_k": "Q5_K_M",
    "q3_k": "Q3_K_M",
}


def memory_bound(arrangement: Arrangement, subject: Subject, depth: int, batch: int) -> float | None:
    """Return the tokens a second that the memory of the devices allows at most, None where that is not known."""
    layers = sum(number for _, _, number in arrangement.parts)
    parts = [(plan.token_bytes[0], device, number / layers) for plan, device, number in arrangement.parts]
    return bound(parts, subject, arrangement.cache_dtype, depth, batch)


def llama_cpp_speed(
    arrangement: Arrangement, subject: Subject, format: str, context: int, outline: Outline
) -> LlamaCpp | None:
    """Return llama.cpp's speed with weights in that format; None where it has no such files, or for several devices."""
    file_type = _FILE_TYPES.get(format.partition(":")[0], "")
    stored = format == "stored" and (subject.kind == "gguf" or ":" in subject.path)
    if len(arrangement.parts) != 1 or not (file_type or stored):
        return None
    weight_plan, device, _ = arrangement.parts[0]
    command = llama_server(subject, file_type, outline)
    if command:
        command += ("" if device.kind == "cpu" else " -ngl 99") + f" -c {context}"
    size, number = weight_plan.token_bytes
    found = _published(device, 8 * size / number if number else 0.0, size, subject)
    if found is None:
        return LlamaCpp(command)
    rate, row = found
    return LlamaCpp(command, float(f"{rate:.2g}"), f"{row.model} {row.tokens_per_second:g} tokens/s", row.source)


def llama_server(subject: Subject, file_type: str, outline: Outline) -> str:
    """Return the command that serves the model: from a file, from a hub repository of GGUF files, or from a file that
    ``rung quantize`` writes first; an empty text where no weights are known. ``file_type`` is empty for a file as it
    is stored."""
    if starter := find_starter(subject.path):  # which is not here: its path is its name
        return f"llama-server -hf {starter.hub.repository}:{starter.format.upper()}"
    if subject.kind == "gguf":
        return shlex.join(["llama-server", "-m", subject.path])
    repository, colon, _ = subject.path.partition(":")
    if subject.kind == "hub" and colon:
        return shlex.join(["llama-server", "-hf", f"{repository}:{file_type}" if file_type else subject.path])
    if outline.gguf:
        return shlex.join(["llama-server", "-hf", f"{outline.gguf}:{file_type}"])
    has_weights = subject.kind in ("folder", "hub") or (subject.kind == "config" and bool(outline.title))
    if not has_weights or subject.decoder is None:
        return ""
    file = f"{PurePath(outline.name).name}-{file_type.lower()}.gguf"
    written = shlex.join(["rung", "quantize", subject.path, file, "--format", file_type.lower()])
    return f"{written} && {shlex.join(['llama-server', '-m', file])}"


def _published(device: Device, bits: float, size: float, subject: Subject) -> tuple[float, llama_cpp.Decoding] | None:
    """Dense models alone: what a mixture of experts reaches does not follow from figures of dense ones."""
    if device.kind == "cpu" or subject.shape.experts or not size:
        return None
    return llama_cpp.expected(device.name, bits, size)
