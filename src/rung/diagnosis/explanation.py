"""An explanation as a value: the cause of an error, what to do about it, and what runs instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rung.core.text import size
from rung.core.value import Shown, Value
from rung.diagnosis.evidence import Evidence
from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.fixes.wording import Fix
from rung.diagnosis.logs.programs import NONE, Program
from rung.diagnosis.model import NOT_SURE, ONE_OF, in_words

_ON_CPU = "rung-exec-cpu"


@dataclass(frozen=True)
class Works(Value):
    """A model that runs on ``device`` (``a Quadro P2200``): in which format, with which memory (bytes) of what is free,
    how fast, by which command.

    ``change`` says what is different from what was asked (a shorter context), ``faster`` is a command of llama.cpp
    where that is faster; both are mostly empty. ``of_log``: it is the model that the log, or ``--model``, names.
    """

    model: str
    device: str
    format: str
    memory: int
    free: int
    tokens_per_second: float | None
    command: str | None
    change: str = ""
    faster: str = ""
    of_log: bool = False

    @property
    def sentence(self) -> str:
        """``Gemma 2B in q8_0, 3.1 of 4.9 GB, about 7 tokens/s``."""
        change = f", {self.change}" if self.change and self.format not in self.change else ""
        return f"{self.model} in {self.format}{change}, {self.use}"

    @property
    def use(self) -> str:
        """``3.1 of 4.9 GB, about 7 tokens/s``."""
        number, unit = size(self.free).split(" ", 1)
        memory = size(self.memory)
        of = f"{memory.removesuffix(f' {unit}') if memory.endswith(unit) else memory} of {number} {unit}"
        speed = self.tokens_per_second
        return of + (f", about {speed:.2g} tokens/s" if speed is not None else "")


@dataclass(frozen=True)
class Alternative(Value):
    """Another cause and its probability."""

    cause: str
    confidence: float


@dataclass(frozen=True)
class Explanation(Shown, Value):
    """``cause`` is a label of ``causes.toml`` or None; ``confidence`` the probability that it is right.

    ``alternatives`` are other causes, falling; ``automatic``: ``rung run`` repairs it by itself. ``repairs`` are what
    rung itself does about it: ``rung run`` with the model of the log, ``rung exec`` before its command; ``works`` is
    what runs on the device today, where one was asked about. ``tell`` is the command that tells the likeliest
    alternative apart, ``program`` what the log is of, ``again`` how to get a log that says more; ``vague``: the log is
    everyday words, and a program's own would say more. These four are not in the JSON.
    """

    cause: str | None
    confidence: float
    fixes: tuple[Fix, ...]
    automatic: bool
    alternatives: tuple[Alternative, ...]
    evidence: tuple[Evidence, ...]
    repairs: tuple[Fix, ...] = ()
    works: Works | None = None
    tell: str = field(default="", compare=False)
    program: Program = field(default=NONE, compare=False)
    again: str = field(default="", compare=False)
    vague: bool = field(default=False, compare=False)
    VIEW = "rung.cli.views.explain"

    def to_json(self) -> dict[str, Any]:
        """The answer as an object."""
        unsaid = ("tell", "program", "again", "vague")
        found = {key: value for key, value in super().to_json().items() if key not in unsaid}
        if self.works is not None:
            found["works"] |= {"sentence": self.works.sentence}
        return found | {"certainty": self.certainty}

    @property
    def certainty(self) -> str | None:
        """How sure the cause is, in words; None without one."""
        return None if self.cause is None else in_words(self.confidence)

    @property
    def unsure(self) -> bool:
        """Return whether the cause is little more than a guess."""
        return self.certainty == NOT_SURE

    @property
    def doubtful(self) -> bool:
        """Return whether other causes are about as likely."""
        return self.certainty in (ONE_OF, NOT_SURE)

    @property
    def ways(self) -> tuple[tuple[Fix, ...], tuple[Fix, ...]]:
        """Return the fixes in order, and the ways that rung goes instead. A machine without a GPU gets none by another
        build, so the processor comes first there. A fix by a release that nobody knows is left out where there is
        another fix."""
        first = tuple(fix for fix in self.repairs if fix.label == _ON_CPU)
        named = tuple(fix for fix in self.fixes if not fix.nameless) or self.fixes
        return (*first, *named), tuple(fix for fix in self.repairs if fix.label != _ON_CPU)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.cause is None:
            if any(item.line is not None for item in self.evidence):
                return "I do not know this one: what I know of it says too little, or the program went on after it."
            return "I do not know this one: nothing in it matches an error that I know."
        return causes()[self.cause].sentence
