"""Do what happens in a program when it has imported torch."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping

import torch

from rung.core.text import size
from rung.exec.launch import PROCESSOR
from rung.exec.report import Notes
from rung.exec.step_down import Steps

#: From here on torch has what is needed to watch operations (torch/library.py: ``with_keyset``).
_OLDEST = (2, 3)
#: Set for the processes that this one starts, once the line about the processor is written.
_SAID = "RUNG_EXEC_SAID"
#: What is put in force stays so until the process ends.
_forever = contextlib.ExitStack()
atexit.register(_forever.close)


def install(settings: Mapping[str, str]) -> None:
    """Simulates the card that the settings name, or has the processor stand in for one, and watches operations unless
    they say ``strict``."""
    notes = Notes(settings["notes"])
    strict = "strict" in settings
    device = settings.get("device")
    if device is not None and device != PROCESSOR:
        _simulate(settings, None if strict else Steps(notes))
        return
    if device == PROCESSOR:
        _stand_in(notes)
    if not strict:
        if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
            notes.word(f"torch {torch.__version__} is too old to be watched; errors are explained only")
            return
        from rung.exec import step_down

        steps = Steps(notes)
        step_down.operations(steps, (*step_down.FUNCTIONS, *(step_down.LIBRARIES if step_down.gpu() else ())))
        step_down.composed(steps)


def _stand_in(notes: Notes) -> None:
    """The processor is ``cuda`` from now on; the first process of a program that comes here says so."""
    from rung.exec.cuda_on_cpu.enter import put_in_force

    card = put_in_force(notes.word).card.device
    notes.stood_in()
    if os.environ.get(_SAID) is None:
        os.environ[_SAID] = "1"
        sys.stderr.write(
            f"rung exec: cuda is this processor: {card.name}, {torch.get_num_threads()} threads, {size(card.memory)}\n"
        )


def _simulate(settings: Mapping[str, str], steps: Steps | None) -> None:
    from rung.exec.step_down import Everything, composed
    from rung.simulation.context import simulate
    from rung.simulation.defects import defects
    from rung.simulation.dispatch import threads
    from rung.simulation.dispatch.patches import Patches

    if steps is not None:

        def everything() -> Everything:
            return Everything(steps)

        patches = Patches()
        threads.install(everything, patches)  # first, so that in each thread it comes above the card
        composed(steps)
        patches.follow()  # ``threading`` holds by name what starts a thread, and is to hold this one
    memory, software = settings.get("memory"), settings.get("software")
    _forever.enter_context(simulate(settings["device"], memory=memory, software=software, defects=defects(settings)))
    if steps is not None:
        _forever.enter_context(threads.entered(everything))
