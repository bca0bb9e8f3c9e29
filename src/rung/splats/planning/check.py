"""Find out whether splats can be trained on a scene: (scene, devices, question) -> Answer; pure.

A choice for each resolution and device; its format is that of the splats.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rung.core.errors import UnknownFormat, UsageError
from rung.core.text import count, did_you_mean, duration, quoted
from rung.core.types import StepClass, Verdict, no
from rung.core.value import FrozenDict
from rung.hardware.select import Group, group_id
from rung.models.card import SceneCard
from rung.planning.answers.values import devices_phrase
from rung.planning.check_result import Answer, Choice, Question, Relaxation, Speed
from rung.planning.memory import computes, uncertainty
from rung.splats.planning import FORMATS, SplatPlan, SplatRequest, best, ways_out

#: Fewer steps a second count as slow: the published schedules would take a day.
_SLOW = 1 / 3


@dataclass(frozen=True)
class SplatChoice(Choice):
    """One resolution on one device; ``seconds`` are those of as many steps as training would do there."""

    plan: SplatPlan = dataclasses.field(kw_only=True)

    @property
    def column(self) -> str:
        """The resolution, ``400 x 300``, and the format where it is another one than f32."""
        size = f"{self.plan.width} x {self.plan.height}"
        return size if self.format == "f32" else f"{size}, {self.format}"

    @property
    def speeds(self) -> tuple[str, ...]:
        """Return the predicted speeds in words."""
        return self.plan.speeds

    def to_json(self) -> dict[str, Any]:
        """The choice as scripts read it."""
        own = {name: getattr(self.plan, name) for name in ("splats", "width", "height", "steps")}
        times = {name: round(getattr(self.plan, name), 3) for name in ("steps_per_second", "seconds")}
        return {**super().to_json(), **own, **times}


@dataclass(frozen=True, repr=False)
class SplatAnswer(Answer):
    """``photographs`` of the scene are trained on."""

    photographs: int = 0

    @property
    def about(self) -> str:
        """``60 photographs``."""
        return count(self.photographs, "photograph")

    @property
    def sentence(self) -> str:
        """The answer in one sentence: where, in which pictures, how long."""
        if self.best is None:
            where = devices_phrase(self.groups[0]) if self.groups else "nothing"
            return f"{self.model}: no splats can be trained on {where}."
        best = self.choices[self.best]
        assert isinstance(best, SplatChoice)
        plan = best.plan
        word = "yes" if best.level == "yes" else "slowly"
        pictures = f"pictures of {plan.width} x {plan.height} and up to {plan.splats:,} splats"
        where = devices_phrase(self.group(best.device))
        return f"{self.model} on {where}: {word}, with {pictures}, {plan.steps:,} steps in {duration(plan.seconds)}."

    def to_json(self) -> dict[str, Any]:
        """The answer as scripts read it."""
        return {**super().to_json(), "photographs": self.photographs}


def check(card: SceneCard, devices: Sequence[Group], question: Question) -> SplatAnswer:
    """Every resolution on every device, and the best of them. Raises ``UnknownFormat``, ``UsageError``."""
    _only_for_models(question)
    choices: list[Choice] = []
    by_device: dict[str, int | None] = {}
    helpful: list[Relaxation] = []
    for group in devices:
        request = _request(card, group, question)
        shown = [name for name in FORMATS if name in (question.formats or FORMATS)]
        kept = [dataclasses.replace(request, format=name) for name in shown]
        plans = [each.at(scale) for scale in request.scales for each in kept]
        taken = request.plans()
        rows = [_choice(request, group, each, each not in taken) for each in plans]
        able = [row.plan for row in rows if row.verdict and row.plan in taken]
        chosen = best(able, request) if able else None
        by_device[group_id(group)] = len(choices) + plans.index(chosen) if chosen else None
        choices += rows
        if not able and computes(group[0]):
            helpful += [Relaxation(words, words) for words in ways_out(request, plans[-1])]
    found = [index for index in by_device.values() if index is not None]
    first = max(found, key=lambda index: _merit(choices[index]), default=None)
    return SplatAnswer(
        card.path,
        tuple(choices),
        first,
        FrozenDict(by_device),
        () if found else tuple(helpful[:2]),
        groups=tuple(devices),
        photographs=len(card.views),
    )


def _merit(choice: Choice) -> tuple[int, float]:
    """Larger pictures are better, then speed."""
    assert isinstance(choice, SplatChoice)
    return choice.plan.max_resolution, choice.plan.steps_per_second


def _only_for_models(question: Question) -> None:
    """Options about language models change nothing here."""
    plain = Question(formats=question.formats, memory=question.memory)
    for field in dataclasses.fields(Question):
        if getattr(question, field.name) != getattr(plain, field.name):
            option = "--" + field.name.replace("_", "-")
            raise UsageError(
                f"{option} is about language models; this is a scene.",
                (),
                [f"leave {option} out"],
                code="option-without-effect",
            )


def _request(card: SceneCard, group: Group, question: Question) -> SplatRequest:
    unknown = next((name for name in question.formats if name not in FORMATS), None)
    if unknown is not None:
        raise UnknownFormat(
            f"Splats are not kept in {unknown!r}.{did_you_mean(unknown, FORMATS)}",
            [f"they are kept in {' or '.join(FORMATS)}"],
            [f"rung check {quoted(card.path)} --format f32"],
        )
    memory = question.memory.get(group_id(group), question.memory.get("*"))
    return SplatRequest(card, group[0], memory, format=question.formats[0] if len(set(question.formats)) == 1 else None)


def _choice(request: SplatRequest, group: Group, plan: SplatPlan, named: bool) -> SplatChoice:
    """``named``: whether training must be told the format."""
    verdict = _verdict(group, plan)
    slow = f"{plan.steps_per_second:.2g} steps a second" if verdict and plan.steps_per_second < _SLOW else ""
    if verdict:
        verdict = Verdict(True, slow or "; ".join(plan.reasons))
    return SplatChoice(
        format=plan.format,
        device=group_id(group),
        fits=plan.fits,
        level="no" if not verdict else "slow" if slow else "yes",
        verdict=verdict,
        memory=plan.memory,
        free=plan.budget,
        speed=Speed(None, None, uncertainty(group[0]), 0),
        error_db=math.inf,
        command=_command(request, plan, named or request.format is not None),
        plan=plan,
    )


def _verdict(group: Group, plan: SplatPlan) -> Verdict:
    if len(group) > 1:
        return no("splats are trained on one device")
    able = computes(group[0])
    if not able or plan.fits:
        return able
    return no(f"the smallest plan needs {plan.peak / 2**30:.1f} GB", StepClass.OUT_OF_MEMORY)


def _command(request: SplatRequest, plan: SplatPlan, named: bool) -> str:
    """Return the command that trains so. A card of the catalog counts as the first of its kind where the command
    runs."""
    device = request.device
    device_name = device.id if device.real else device.kind if device.kind in ("cpu", "mps") else f"{device.kind}:0"
    words = ["rung", "splat", "train", request.card.path, "--out", "DIR", "--device", device_name]
    words += ["--max-resolution", str(plan.max_resolution)]
    words += ["--format", plan.format] if named else []
    return shlex.join(words + ([f"--memory={request.memory / 2**30:.6g}GB"] if request.memory else []))
