"""Hold what a run is asked for: every option that changes what comes out, kept beside it as ``config.json``."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, fields

from rung.core.errors import UsageError
from rung.core.value import Value
from rung.planning.splats import FORMATS

STRATEGIES = ("mcmc", "classic")
ALPHAS = ("masked", "transparent")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Settings(Value):
    """Options of ``rung splat train``; None is what the plan, or the pictures, say.

    ``seconds`` is the deadline of a run that was given a time instead of ``steps``. ``alpha`` says what transparent
    and masked pixels are: ``masked`` ones are not looked at, ``transparent`` ones show the background. ``sfm`` finds
    the cameras first.
    """

    scene: str
    images: str | None = None
    subsample: int = 1
    max_images: int | None = None
    sfm: bool = False
    steps: int | None = None
    seconds: float | None = None
    max_splats: int | None = None
    sh_degree: int = 3
    max_resolution: int | None = None
    memory: str | None = None
    format: str | None = None
    device: str | None = None
    strategy: str = "mcmc"
    background: str = "black"
    alpha: str | None = None
    exposure: bool = False
    antialiased: bool = False
    optimize_poses: bool = False
    init: str | None = None
    eval_split: int = 8
    eval_every: int | None = None
    export_every: int | None = None
    checkpoint_every: int | None = None
    seed: int = 42
    threads: int | None = None

    def check(self) -> None:
        """Raises ``UsageError`` for what can be known before anything is read."""
        if self.steps is not None and self.seconds is not None:
            raise UsageError(
                "--steps and --time say the same thing twice.",
                [],
                ["give one of them"],
                code="options-exclude-each-other",
            )
        if self.sfm and self.scene == "demo":
            raise UsageError(
                "--sfm finds cameras, and demo comes with its own.",
                [],
                ["leave --sfm out"],
                code="option-without-effect",
            )
        if not 0 <= self.sh_degree <= 3:
            raise UsageError(
                f"--sh-degree {self.sh_degree}: harmonics have degree 0 to 3.",
                [],
                ["--sh-degree 3"],
                code="value-out-of-range",
            )
        if self.format is not None and self.format not in FORMATS:
            raise UsageError(
                f"--format {self.format}: there are {' and '.join(FORMATS)}.", [], ["leave it out"], code="name-unknown"
            )
        if self.strategy not in STRATEGIES:
            raise UsageError(
                f"--strategy {self.strategy}: there are {' and '.join(STRATEGIES)}.",
                [],
                ["leave it out"],
                code="name-unknown",
            )
        if self.alpha is not None and self.alpha not in ALPHAS:
            raise UsageError(
                f"--alpha {self.alpha}: there are {' and '.join(ALPHAS)}.", [], ["leave it out"], code="name-unknown"
            )
        self.ground()

    def ground(self) -> tuple[float, float, float] | None:
        """The background's colour, 0 to 1; None for another one at each step. Raises ``UsageError``."""
        if self.background == "random":
            return None
        from rung.splats.render import colour

        return colour(self.background)


def options_that_differ(asked: Settings, held: Settings, given: Collection[str] | None = None) -> list[str]:
    """``--seed 1 (was 42)`` for each option that is asked for and is not the one a run was begun with.

    Asked for are those that are ``given`` by name; where that is not known, those that are not at their default.
    """
    found = []
    for field in fields(Settings):
        new, old = getattr(asked, field.name), getattr(held, field.name)
        default = None if field.name == "scene" else field.default
        if new != old and (new != default if given is None else field.name in given):
            name = {"seconds": "time", "scene": "SCENE"}.get(field.name, field.name).replace("_", "-")
            found.append(f"{'' if name == 'SCENE' else '--'}{name} {new} (was {old})")
    return found


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``30m`` or ``1.5h``. Raises ``UsageError``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)\s*", text.lower())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else math.nan
    if not 0 < seconds < 1e7:
        raise UsageError(f"--time {text} is no time.", [], ["--time 30m, 90s or 1.5h"], code="value-out-of-range")
    return seconds
