"""``rung check SCENE``: splats on the photographs of a folder; what ``rung check`` needs for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.views.output import columns
from rung.core.errors import UsageError

if TYPE_CHECKING:
    from rung.hardware.select import Group
    from rung.planning.check_result import Answer, Question
    from rung.splats.planning.check import SplatChoice

#: What a folder of photographs with cameras holds, and no model.
_MARKS = ("transforms.json", "transforms_train.json", "sparse", "colmap", "cameras.bin", "cameras.txt")


def is_scene(name: str) -> bool:
    """Return whether a path is a scene of photographs and no model."""
    path = Path(name)
    try:
        if path.suffix.lower() == ".zip" and path.is_file():
            return True
        inner = [entry for entry in path.glob("*") if entry.is_dir()]
        return _holds_cameras(path) or (len(inner) == 1 and _holds_cameras(inner[0]))
    except OSError:  # too long for a name: whatever opens it says so
        return False


def _holds_cameras(folder: Path) -> bool:
    if any((folder / mark).exists() for mark in _MARKS):
        return True
    if not any(folder.glob("*.csv")):  # tables lie beside models too
        return False
    from rung.splats.scenes import realitycapture

    return realitycapture.table(folder) is not None


def is_answer(answer: Answer) -> bool:
    """Return whether an answer is about a scene: it was made by a module that nothing imports for models."""
    module = sys.modules.get("rung.splats.planning.check")
    return module is not None and isinstance(answer, module.SplatAnswer)


def check(
    path: str, groups: Sequence[Group], question: Question, *, trace: bool, offline: bool, revision: str | None
) -> Answer:
    """The answer for a scene, which asks nothing of a network; see ``rung.engine.checking.answer_for``.

    Raises what reading the scene and checking raise.
    """
    from rung.engine.checking import occupied
    from rung.splats.planning import check
    from rung.splats.scenes import scene

    for name, value in (("--trace", trace), ("--revision", revision)):
        if value:
            raise UsageError(
                f"{name} is about models; {path} is a scene.", (), [f"leave {name} out"], code="option-without-effect"
            )
    return occupied(check.check(scene(path), groups, question), groups)


def table(shown: Sequence[Any], answer: Answer) -> list[str]:
    """The lines of the choices, devices by name."""
    headings = ("format", "device", "pictures", "splats", "memory", "free", "", "steps/s", "time", "")
    return columns(headings, [_row(choice, answer.name(choice.device)) for choice in shown])


def _row(choice: SplatChoice, device: str) -> tuple[str, ...]:
    from rung.core.text import duration, size

    plan = choice.plan
    return (
        choice.format,
        device,
        f"{plan.width} x {plan.height}",
        f"{plan.splats:,}",
        size(plan.peak),
        size(choice.free),
        choice.level,
        f"{plan.steps_per_second:.3g}" if choice.verdict else "",
        duration(plan.seconds) if choice.verdict else "",
        choice.verdict.reason,
    )
