"""Hold what ``rung check`` is asked and what it answers, as values with the JSON that scripts read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rung.core.errors import RungError, UsageError
from rung.core.text import count, did_you_mean
from rung.core.types import EMPTY, Device
from rung.core.value import FrozenDict, Shown, Value
from rung.planning.answers.sentence import sentence
from rung.planning.answers.values import Alternative as Alternative
from rung.planning.answers.values import Checkpointing as Checkpointing
from rung.planning.answers.values import Choice as Choice
from rung.planning.answers.values import LlamaCpp as LlamaCpp
from rung.planning.answers.values import Speed as Speed
from rung.planning.answers.values import group_name
from rung.planning.training import WAYS, optimizer_state

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
    ``prompt_tokens`` those of the prompt that speed is predicted for, by default ``PROMPT`` or what the context
    holds; ``cache_type`` what keys and values are stored in: f32, f16, q8_0, q5_1, q4_0, by default (None, auto)
    what fits.
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
    cache_type: str | None = None

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
            if self.training is not None and (value := getattr(self, name)) is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} changes nothing with --training, which reads sequences.",
                    (),
                    [f"--sequence {value}"],
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


def _device_json(device: Device) -> dict[str, Any]:
    """Return a device as JSON: its name, memory and bandwidth."""
    return {
        "id": device.id,
        "name": device.name,
        "kind": device.kind,
        "memory": device.memory,
        "free": device.budget,
        "bandwidth": device.bandwidth,
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
    ``alternatives`` run where nothing does as asked. ``title`` is what people call the model, ``divergence`` what its
    file says of the KL to its source.
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
    divergence: str = ""
    VIEW = "rung.cli.views.check.shown"

    def __repr__(self) -> str:
        return f"<Answer: {self.sentence}>"

    @property
    def ok(self) -> bool:
        """Return whether anything would run with the options that were given."""
        return self.best is not None or any(each.as_asked for each in self.alternatives)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return sentence(self)

    def group(self, key: str) -> tuple[Device, ...]:
        """The devices of a choice, of an alternative those that were asked about."""
        exact = (group for group in self.groups if "+".join(device.id for device in group) == key)
        return next(exact, ())

    def name(self, key: str) -> str:
        """The devices of a choice as people call them."""
        group = self.group(key) or self.group(key.removesuffix("+cpu"))
        names = group_name(group) if group else key
        return names + (" + CPU" if key.endswith("+cpu") and not self.group(key) and group else "")

    @property
    def about(self) -> str:
        """``2,506,172,416 parameters · context 8,192 · KL 0.012 to its source``; of training the length of its
        sequences."""
        sequences = f" · sequences of {count(self.sequence, 'token')}" if self.sequence else ""
        context = f" · context {self.context:,}" if self.context else ""
        divergence = f" · {self.divergence}" if self.divergence else ""
        return count(self.parameters, "parameter") + sequences + context + divergence

    def to_json(self) -> dict[str, Any]:
        """The answer as scripts read it."""
        result: dict[str, Any] = {
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
        if self.divergence:
            result["divergence"] = self.divergence
        if self.sequence:
            result["sequence"] = self.sequence
        if self.passes:
            result["passes"] = [one.to_json() for one in self.passes]
        return result
