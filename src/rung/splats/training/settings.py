"""Hold what a run is asked for: every option that changes what comes out, kept beside it as ``config.json``."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, fields

from rung.core.errors import UsageError
from rung.core.value import Value
from rung.splats.planning import FORMATS

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
        """The background's color, 0 to 1; None for another one at each step. Raises ``UsageError``."""
        if self.background == "random":
            return None
        from rung.splats.render import color

        return color(self.background)


def options_that_differ(settings: Settings, stored: Settings, typed: Collection[str] | None = None) -> list[str]:
    """``--seed 1 (was 42)`` for each option that is asked for and is not the one a run was begun with.

    Asked for are those that are ``typed`` by name; where that is not known, those that are not at their default.
    """
    found = []
    for field in fields(Settings):
        new, old = getattr(settings, field.name), getattr(stored, field.name)
        default = None if field.name == "scene" else field.default
        if new != old and (new != default if typed is None else field.name in typed):
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


PUBLISHED = 30_000
#: Learning rates of 3D Gaussian Splatting; those of the centers are for a scene whose cameras are a unit away.
RATES = {"quats": 1e-3, "log_scales": 5e-3, "logits": 5e-2, "base": 2.5e-3, "harmonics": 2.5e-3 / 20}
_MEANS, _DECAY = 1.6e-4, 0.01
#: How many times as far a center goes in a step of a short run, at the most, and the power of that for all other rates:
#: of 1, 5 and 15 times and of 1, 2 and 3 in 2,000 steps, 15 and 2 scored best (textured scene, 2 dB above 1 and 1).
_MOST, _OTHERS = 30.0, 0.25
#: Share of a run after which harmonics of one more degree are learned.
_DEGREE = 1000 / PUBLISHED
#: Steps between two changes of the number of splats, at the least: Adam must have seen the new ones.
_APART = 10


def rates(done: float, steps: int) -> dict[str, float]:
    """Learning rates by parameter in a run of so many steps; that of the centers falls to a hundredth.

    Those published are for 30,000 steps. In fewer a center must still come as far, and the others learn faster too.
    """
    short = max(PUBLISHED / steps, 1.0)
    faster = min(short, _MOST) ** _OTHERS
    return {name: rate * faster for name, rate in RATES.items()} | {"means": _MEANS * min(short, _MOST) * _DECAY**done}


def _times(done: float, every: float) -> int:
    """How often ``every`` lies in ``done``: also where 1800 / 30000 is a little less than 18 times 100 / 30000."""
    return int(done / every + 1e-9)


def degree(done: float, most: int) -> int:
    """Return the degree of the harmonics that are learned by now."""
    return min(most, _times(done, _DEGREE))


class Beat:
    """Events that come once in each ``every``-th of a run between two shares of it, so many steps at least apart."""

    def __init__(self, every: float, start: float, stop: float, apart: int = _APART) -> None:
        self._every, self._start, self._stop, self._apart = every, start, stop, apart

    def falls(self, step: int, before: float, done: float, last: int) -> bool:
        """Return whether one is due after a step that took the run from ``before`` to ``done``; ``last``: the last
        one."""
        if not self._start < done < self._stop or step - last < self._apart:
            return False
        return _times(done, self._every) > _times(before, self._every)


class Course:
    """How far a run is: by steps, or by seconds of training when it has a deadline; ``steps`` are then a guess."""

    def __init__(self, steps: int, seconds: float | None) -> None:
        self.steps, self.seconds = steps, seconds

    def done(self, step: int, elapsed: float) -> float:
        """Share of the run that is behind after so many steps and seconds of training."""
        if self.seconds is None:
            return min(step / self.steps, 1.0)
        return min(elapsed / self.seconds, 1.0) if self.seconds > 0 else 1.0
