"""How far a run is, from 0 to 1, by its steps or by its time, and what goes by that.

The published schedule is one of 30,000 steps; everything in it is taken as a share of the run, so that a short run
goes through all of it, as gsplat's trainer does with its ``steps_scaler``.
"""

from __future__ import annotations

PUBLISHED = 30_000
#: Learning rates of 3D Gaussian Splatting; those of the centres are for a scene whose cameras are a unit away.
RATES = {"quats": 1e-3, "log_scales": 5e-3, "logits": 5e-2, "base": 2.5e-3, "harmonics": 2.5e-3 / 20}
_MEANS, _DECAY = 1.6e-4, 0.01
#: How many times as far a centre goes in a step of a short run, at the most, and the power of that for all other rates:
#: of 1, 5 and 15 times and of 1, 2 and 3 in 2,000 steps, 15 and 2 scored best (textured scene, 2 dB above 1 and 1).
_MOST, _OTHERS = 30.0, 0.25
#: Share of a run after which harmonics of one more degree are learned.
_DEGREE = 1000 / PUBLISHED
#: Steps between two changes of the number of splats, at the least: Adam must have seen the new ones.
_APART = 10


def rates(done: float, steps: int) -> dict[str, float]:
    """Learning rates by parameter in a run of so many steps; that of the centres falls to a hundredth.

    Those published are for 30,000 steps. In fewer a centre must still come as far, and the others learn faster too.
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
