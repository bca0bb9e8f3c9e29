"""Hold what ``rung check`` is asked and what it answers, as values with the JSON that scripts read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rung.core.errors import RungError, UsageError
from rung.core.shown import Shown
from rung.core.text import count, did_you_mean, rate, size
from rung.core.types import EMPTY, Device, MemoryUse, Verdict
from rung.core.value import FrozenDict, Value
from rung.formats.grades import grade
from rung.planning.answers.values import LlamaCpp as LlamaCpp
from rung.planning.answers.values import Speed as Speed
from rung.planning.optimizers import WAYS, optimizer_state
from rung.planning.pipeline import PlannedPhase

#: What a measure may be at most: no machine holds more, and numbers stay numbers.
_MOST = 10**9
#: What is taken where nothing is asked for: tokens of a prompt, and of training its optimizer, rank and sequence.
PROMPT = 512
OPTIMIZER, RANK, SEQUENCE = "adamw", 16, 1024


@dataclass(frozen=True)
class Question(Value):
    """Hold what is asked; see ``rung check --help``.

    ``formats`` are names of formats and mixtures (empty: those that rung itself would try); ``memory`` bytes by device
    id, ``*`` for any; ``training`` lora or full, by default with ``adamw``, rank 16 and sequences of 1024 tokens;
    ``prompt_tokens`` those of the prompt that speed is predicted for, by default ``PROMPT`` or what the context holds.
    """

    context: int | None = None
    batch: int = 1
    formats: tuple[str, ...] = ()
    memory: FrozenDict[int] = EMPTY
    training: str | None = None
    optimizer: str | None = None
    rank: int | None = None
    sequence: int | None = None
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("context", "batch", "rank", "sequence", "prompt_tokens"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if (value is not None or name == "batch") and not (whole and 1 <= value <= _MOST):
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} {value} makes no sense: it is a whole number from 1 to 10^9.", code="value-out-of-range"
                )
        if isinstance(self.formats, str) or not all(isinstance(name, str) for name in self.formats):
            raise UsageError(
                f"formats is a tuple of names, not {self.formats!r}.", (), ['formats=("q8_0", "nf4")', "rung formats"]
            )
        if "" in self.formats:
            raise UsageError("--format needs the name of a format or a mixture.", (), ["rung formats"])
        if self.training is not None and self.training not in WAYS:
            raise UsageError(
                f"There is no training called {self.training!r}.{did_you_mean(self.training, WAYS)}",
                ["lora: adapters over frozen weights; with --format nf4 that is QLoRA; full: all weights"],
                ["rung check MODEL --training lora"],
                code="name-unknown",
            )
        self._check_training()
        optimizer_state(self.optimizer or OPTIMIZER)

    def _check_training(self) -> None:
        """Raises ``UsageError`` for what changes nothing."""
        for name in ("optimizer", "rank", "sequence"):
            if self.training is None and getattr(self, name) is not None:
                raise UsageError(
                    f"--{name} changes nothing without --training.",
                    (),
                    ["--training lora"],
                    code="option-without-effect",
                )
        for name in ("context", "prompt_tokens"):
            if self.training is not None and (given := getattr(self, name)) is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} changes nothing with --training, which reads sequences.",
                    (),
                    [f"--sequence {given}"],
                    code="option-without-effect",
                )
        if self.training == "full" and self.rank is not None:
            raise UsageError(
                "--rank is that of adapters, which full training has none of.",
                (),
                ["--training lora"],
                code="option-without-effect",
            )


@dataclass(frozen=True)
class Checkpointing(Value):
    """A training step that keeps all activations, and one ``lean`` by gradient checkpointing; ``taken``: the latter."""

    taken: bool
    without: MemoryUse
    lean: MemoryUse

    @property
    def memory(self) -> MemoryUse:
        """Return what the way that is taken needs."""
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
class Pass(Value):
    """One traced forward pass of a component, ``batch`` inputs of ``tokens`` tokens where it reads text.

    ``calls`` is the number of operations, ``flops`` those in floating point, ``bytes`` what they read and write each
    for itself, ``activations`` the most bytes alive at once; ``operations`` are the same by name, the dearest first.
    """

    component: str
    batch: int
    tokens: int
    calls: int
    flops: int
    bytes: int
    activations: int
    operations: tuple[FrozenDict[Any], ...]


@dataclass(frozen=True)
class Choice(Value):
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

    @property
    def column(self) -> str:
        """Return what choices of one device differ by."""
        return self.format

    @property
    def speeds(self) -> tuple[str, ...]:
        """Return what is predicted of its speed, in words; of training nothing."""
        prompt, found = count(self.speed.prompt_tokens, "token"), []
        if self.speed.decode_tokens_per_second is not None:
            found.append(f"{rate(self.speed.decode_tokens_per_second)} tokens/s after a prompt of {prompt}")
        if self.speed.prefill_tokens_per_second is not None:
            found.append(f"{rate(self.speed.prefill_tokens_per_second)} tokens/s while {prompt} are read")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """The choice as scripts read it."""
        lossless = math.isinf(self.error_db)
        made: dict[str, Any] = {
            "format": self.format,
            "device": self.device,
            "fits": self.fits,
            "level": self.level,
            "verdict": {"ok": self.verdict.ok, "reason": self.verdict.reason},
            "memory": memory_json(self.memory),
            **({"checkpointing": self.checkpointing.to_json()} if self.checkpointing else {}),
            "free": self.free,
            "speed": self.speed.to_json(),
            "error_db": None if lossless else round(self.error_db, 1),
            "quality": grade(self.error_db),
            "command": self.command,
        }
        if self.phases:
            made["phases"] = [
                {
                    "name": phase.name,
                    "memory": memory_json(phase.memory),
                    "held": {name: dict(vars(way)) for name, way in phase.held.items()},
                }
                for phase in self.phases
            ]
        if self.in_the_way:
            made["in_the_way"] = [dict(process) for process in self.in_the_way]
        return made


def _device_json(device: Device) -> dict[str, Any]:
    """Return what an answer says of a device: its name, memory and bandwidth."""
    return {
        "id": device.id,
        "name": device.name,
        "kind": device.kind,
        "memory": device.memory,
        "free": device.budget,
        "bandwidth": device.bandwidth,
    }


def memory_json(use: MemoryUse) -> dict[str, int]:
    """Bytes by what they hold, with their total."""
    names = ("weights", "kv_cache", "activations", "workspace", "runtime", "gradients", "optimizer")
    return {name: getattr(use, name) for name in names} | {"total": use.total}


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
        """Return what it is in few words: ``q3_k_m (3 bits)``, ``half on the CPU with q8_0``."""
        from rung.planning.answers.sentence import share_words

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


@dataclass(frozen=True)
class Unanswered(Value):
    """In the place of an answer: a model among others about which the question cannot be answered."""

    model: str
    cause: str
    facts: tuple[str, ...]
    ways_out: tuple[str, ...]
    ok: None = None  # neither yes nor no
    code: str = "error"

    def __str__(self) -> str:
        return str(RungError(self.cause, self.facts, self.ways_out, code=self.code))

    def to_json(self) -> dict[str, Any]:
        """The error as scripts read it."""
        return {
            "model": self.model,
            "error": self.cause,
            "code": self.code,
            "facts": list(self.facts),
            "ways_out": list(self.ways_out),
        }


@dataclass(frozen=True)
class Relaxation(Value):
    """A smallest change that would make it fit: in words, and as a command where there is one."""

    change: str
    command: str | None = None


@dataclass(frozen=True, repr=False)
class Answer(Shown, Value):
    """All choices, refused ones included; ``best`` and ``best_by_device`` are indices in them.

    ``passes`` are the forward passes that were traced, one a component. ``context`` is 0 where nothing reads a text,
    and of training, which has a ``sequence`` instead. ``groups`` are the devices that were asked about;
    ``alternatives`` run where nothing does as asked. ``title`` is what people call the model.
    """

    model: str
    choices: tuple[Choice, ...]
    best: int | None
    best_by_device: FrozenDict[int | None]
    relaxations: tuple[Relaxation, ...] = ()
    parameters: int = 0
    context: int = 0
    passes: tuple[Pass, ...] = ()
    sequence: int = 0
    groups: tuple[tuple[Device, ...], ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    title: str = ""
    VIEW = "rung.cli.views.shown_answer"

    def __repr__(self) -> str:
        return f"<Answer: {self.sentence}>"

    @property
    def ok(self) -> bool:
        """Return whether anything would run with the options that were given."""
        return self.best is not None or any(each.as_asked for each in self.alternatives)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        from rung.planning.answers.sentence import sentence

        return sentence(self)

    def group(self, key: str) -> tuple[Device, ...]:
        """The devices of a choice, of an alternative those that were asked about."""
        exact = (group for group in self.groups if "+".join(device.id for device in group) == key)
        return next(exact, ())

    def name(self, key: str) -> str:
        """The devices of a choice as people call them."""
        from rung.planning.answers.sentence import group_name

        group = self.group(key) or self.group(key.removesuffix("+cpu"))
        names = group_name(group) if group else key
        return names + (" + CPU" if key.endswith("+cpu") and not self.group(key) and group else "")

    @property
    def about(self) -> str:
        """``2,506,172,416 parameters · context 8,192``; of training the length of its sequences."""
        sequences = f" · sequences of {count(self.sequence, 'token')}" if self.sequence else ""
        context = f" · context {self.context:,}" if self.context else ""
        return count(self.parameters, "parameter") + sequences + context

    def to_json(self) -> dict[str, Any]:
        """The answer as scripts read it."""
        made: dict[str, Any] = {
            "answer": self.sentence,
            "model": self.model,
            "parameters": self.parameters,
            "context": self.context,
            "choices": [choice.to_json() for choice in self.choices],
            "alternatives": [alternative.to_json() for alternative in self.alternatives],
            "devices": {"+".join(d.id for d in group): [_device_json(d) for d in group] for group in self.groups},
            "best": self.best,
            "best_by_device": dict(self.best_by_device),
            "relaxations": [relaxation.to_json() for relaxation in self.relaxations],
        }
        if self.sequence:
            made["sequence"] = self.sequence
        if self.passes:
            made["passes"] = [one.to_json() for one in self.passes]
        return made
