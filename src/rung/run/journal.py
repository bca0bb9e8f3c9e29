"""Record what happened while running: steps down, said once, and the quarantine they lead to."""

from __future__ import annotations

from collections.abc import Callable

from rung.core.types import Climb, Report, Rung, StepClass, StepDown
from rung.core.value import FrozenDict


class Journal:
    """Collects the steps down of one run and makes the report of them.

    ``on_step`` is called with each new step, once, so that it can be said while it happens; ``on_note`` with
    what a person should know.
    """

    def __init__(
        self,
        on_step: Callable[[StepDown], None] = lambda step: None,
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._steps: dict[tuple[str, str, str, str], StepDown] = {}
        self._broken: dict[tuple[str, str, str, str], str] = {}
        self._rungs: dict[str, dict[str, None]] = {}  # in the order in which they were taken
        self._on_step = on_step
        self.say = on_note
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Record and say what a person should know."""
        self.notes.append(text)
        self.say(text)

    def quarantine(self, device: str, rung: Rung, format: str, reason: str) -> None:
        """Never uses that rung again for that format on that device in this run."""
        self._broken[(device, rung.op, rung.name, format)] = reason

    def broken(self, device: str, rung: Rung, format: str) -> str:
        """Why a rung is in quarantine, or an empty string."""
        return self._broken.get((device, rung.op, rung.name, format), "")

    def left(self, device: str, op: str) -> dict[str, str]:
        """Why rungs are in quarantine there, by name."""
        return {name: reason for (at, of, name, _), reason in self._broken.items() if (at, of) == (device, op)}

    def step(self, step: StepDown) -> None:
        """Records a step down; the same one is recorded and said once."""
        if self.record(step):
            self._on_step(step)

    def record(self, step: StepDown) -> bool:
        """Records a step down that was said elsewhere, as a plan's in its reasons; whether it is new."""
        key = (step.op, step.rung, step.device, step.reason)
        return self._steps.setdefault(key, step) is step

    def climbed(self, device: str, op: str, format: str, climb: Climb) -> None:
        """Records the rung that was taken, and the refusals above it that are worth a word.

        A rung that is for another size of the same case, or for another kind of device, is no step down.
        """
        if climb.rung is None:
            return
        self._rungs.setdefault(f"{op} {format}", {})[climb.rung.name] = None
        for refusal in climb.refusals:
            if refusal.step is not StepClass.UNSUPPORTED:
                self.step(StepDown(op, refusal.rung, device, refusal.step, refusal.reason, climb.rung.name))

    def ran(self, work: str, name: str) -> None:
        """Records what computes something, where no ladder was climbed for it."""
        self._rungs.setdefault(work, {})[name] = None

    def report(self, predicted: FrozenDict[float], measured: FrozenDict[float]) -> Report:
        """The report so far; byte counts and rates by name, predicted beside measured."""
        rungs = FrozenDict({work: ", ".join(taken) for work, taken in self._rungs.items()})
        return Report(tuple(self._steps.values()), rungs, predicted, measured, tuple(self.notes))
