"""Replace attributes for a while and put them back: ``torch.compile``, and answers that libraries keep."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from rung.core.types import Level
from rung.run.torch_private import import_compiler
from rung.simulation.simulation import World

_ABSENT = object()


class Patches:
    """Replaced attributes of modules and classes; ``undo`` puts back what was there, the last one first."""

    def __init__(self) -> None:
        self._undone: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute. One that ``owner`` only inherits is taken away again by ``undo``."""
        self._undone.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def follow(self) -> None:
        """Replaces in modules of others what they imported by name from those of torch that are patched by now."""
        _exchange(self._functions())

    def undo(self) -> None:
        """Puts everything back, in modules of others too, which may have been imported meanwhile."""
        theirs = [(now, was) for was, now in self._functions()]
        while self._undone:
            owner, name, value = self._undone.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        _exchange(theirs)

    def _functions(self) -> list[tuple[Any, Any]]:
        """Functions and classes of modules, each with what is there instead."""
        patched = [(owner, name, was) for owner, name, was in self._undone if isinstance(owner, ModuleType)]
        return [(was, vars(owner)[name]) for owner, name, was in patched if callable(was)]


def _exchange(pairs: list[tuple[Any, Any]]) -> None:
    """The first of each pair becomes the second wherever a module holds it that is neither torch's nor rung's."""
    becoming = {id(old): new for old, new in pairs}
    if not becoming:
        return
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module_name.partition(".")[0] in ("torch", "rung"):
            continue
        names = vars(module)
        if not becoming.keys().isdisjoint(map(id, names.values())):
            for name in [name for name, value in names.items() if id(value) in becoming]:
                setattr(module, name, becoming[id(names[name])])


#: Modules whose cached functions ask torch what is there: ``is_torch_cuda_available`` and its like.
_MODULES = ("transformers.utils.import_utils", "accelerate.utils.imports", "accelerate.utils.environment")


def forget() -> None:
    """Empties the caches of those modules that are imported."""
    for name in _MODULES:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()


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
