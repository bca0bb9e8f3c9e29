"""Do what happens when another program's module has been imported, now or later; standard library only.

``import rung`` must cost nothing, and whether a program will import transformers or diffusers nobody knows then: so
making quant_method ``rung`` known is put behind the import of the modules that hold their tables of quantizers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Sequence

TYPE_CHECKING = False  # typing's costs an import at every start
if TYPE_CHECKING:
    import importlib.abc
    from types import ModuleType

TABLE = "transformers.quantizers.auto"
DIFFUSERS_TABLE = "diffusers.quantizers.auto"
#: Modules that register at their end, whoever imports them, by the table that they add to.
_REGISTERING = {TABLE: "rung.hub.quantizer", DIFFUSERS_TABLE: "rung.hub.diffusers"}


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
    """Cancel what was to happen after the import of that module."""
    sys.meta_path[:] = [each for each in sys.meta_path if not (isinstance(each, _Finder) and each.name == name)]


class _Finder:
    """Finds a module as everybody does, and calls a function once it is executed, not when it is looked for."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the finders behind this one have; None for all other modules."""
        if name != self.name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def and_then(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == self.name and self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        loader.exec_module = and_then  # type: ignore[method-assign]
