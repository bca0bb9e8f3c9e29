"""What happens when another program's module has been imported, now or later; standard library only.

``import rung`` must cost nothing, and whether a program will import transformers or diffusers nobody knows then: so
making quant_method ``rung`` known is put behind the import of the modules that hold their tables of quantisers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

TABLE = "transformers.quantizers.auto"
DIFFUSERS_TABLE = "diffusers.quantizers.auto"
#: Modules that register at their end, whoever imports them, by the table that they add to.
_REGISTERING = {TABLE: "rung.hub.transformers", DIFFUSERS_TABLE: "rung.hub.diffusers"}


def install() -> None:
    """Registers now where a table is there already, else when it comes."""
    for table, module in _REGISTERING.items():
        after_import(table, functools.partial(importlib.import_module, module))


def after_import(name: str, then: Callable[[], object]) -> None:
    """Calls ``then`` now if that module has been imported, else once, when it has been."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        then()
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))


def forget(name: str) -> None:
    """What was to happen after the import of that module does not."""
    sys.meta_path[:] = [each for each in sys.meta_path if not (isinstance(each, _Finder) and each.name == name)]


class _Finder:
    """Finds a module as everybody does, and calls a function once it has been executed."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None for all other modules."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_then(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = and_then  # type: ignore[method-assign]
        return spec
