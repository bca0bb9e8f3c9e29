"""A simulated card as a program under ``rung exec --device sim:NAME`` has it, in this process."""

from __future__ import annotations

import contextlib

import rung
from rung.exec.report import Notes
from rung.exec.step_down import Everything, Steps
from rung.simulation.dispatch import threads
from rung.simulation.dispatch.patches import Patches


@contextlib.contextmanager
def helped(notes, *card, **more):
    """A simulated card whose refusals are repeated, as ``rung exec`` does it."""
    steps, patches = Steps(Notes(str(notes))), Patches()

    def everything():
        return Everything(steps)

    try:
        threads.install(everything, patches)
        with rung.simulate(*card, **more), threads.entered(everything):
            yield steps
    finally:
        patches.undo()
