"""``torch.compile`` while a simulation is in force: what is compiled runs as it is written, and that is said.

A compiled program would bypass the account of memory and the refusals, and its times would mean nothing. The compiler
is not even asked: it would learn the functions that stand in for torch's, and know the real ones no more afterwards.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from rung.core.types import Level
from rung.run.torch_private import import_compiler
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World

import_compiler()  # before anything is replaced: the first mode or checkpoint would import it inside


def install(world: World, patches: Patches) -> Callable[[], None]:
    """Puts it in force; returns what takes it out again."""
    real = torch.compile
    warned = False

    @functools.wraps(real)
    def compiled(model: Any = None, **options: Any) -> Any:
        nonlocal warned
        if not world.active:
            return real(model, **options)
        if not warned:
            warned = True
            warnings.warn(_words(world), stacklevel=2)
        return model if model is not None else lambda function: function

    patches.set(torch, "compile", compiled)
    stance = torch.compiler.set_stance("force_eager")  # what was compiled before
    return lambda: stance.__exit__(None, None, None)


def _words(world: World) -> str:
    text = "torch.compile is not simulated: what it compiles runs as it is written."
    found = world.card.device.capability("compile")
    return f"{text} On the card it fails: {found.source}." if found.level is Level.ABSENT else text
