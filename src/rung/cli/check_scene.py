"""``rung check SCENE``: splats on the photographs of a folder; what ``rung check`` needs for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.output import columns
from rung.core.errors import UsageError

if TYPE_CHECKING:
    from rung.planning.answer import Answer
    from rung.planning.splat_check import SplatChoice

#: What a folder of photographs with cameras holds, and no model.
_MARKS = ("transforms.json", "transforms_train.json", "sparse", "colmap", "cameras.bin", "cameras.txt")


def is_scene(name: str) -> bool:
    """Whether a path is a scene of photographs and no model."""
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
    """Whether an answer is about a scene: it was made by a module that nothing imports for models."""
    module = sys.modules.get("rung.planning.splat_check")
    return module is not None and isinstance(answer, module.SplatAnswer)


def check(
    path: str,
    devices: Sequence[str],
    *,
    software: str | None,
    memory: str | None,
    fits: bool,
    offline: bool,
    revision: str | None,
    trace: bool,
    **asked: Any,
) -> Answer:
    """The answer for a scene, which asks nothing of a network; see ``rung.engine.checking.check_model``.

    Raises what reading the scene, naming devices and checking raise.
    """
    from rung.engine.groups import catalogue, groups_of, occupied
    from rung.planning import splat_check
    from rung.planning.answer import Question
    from rung.planning.request import parse_memory
    from rung.splats.scenes import scene

    for name, given in (("--trace", trace), ("--revision", revision)):
        if given:
            raise UsageError(f"{name} is about models; {path} is a scene.", (), [f"leave {name} out"])
    groups = catalogue(software) if fits else groups_of(devices, software)
    return occupied(splat_check.check(scene(path), groups, Question(memory=parse_memory(memory), **asked)), groups)


def table(shown: Sequence[Any]) -> list[str]:
    """The lines of the choices."""
    headings = ("format", "device", "pictures", "splats", "memory", "free", "", "steps/s", "time", "")
    return columns(headings, map(_row, shown))


def _row(choice: SplatChoice) -> tuple[str, ...]:
    from rung.core.text import duration, size

    made = choice.plan
    return (
        choice.format,
        choice.device,
        f"{made.width} x {made.height}",
        f"{made.splats:,}",
        size(made.peak),
        size(choice.free),
        choice.level,
        f"{made.steps_per_second:.3g}" if choice.verdict else "",
        duration(made.seconds) if choice.verdict else "",
        choice.verdict.reason,
    )
