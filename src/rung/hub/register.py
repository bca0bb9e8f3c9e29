"""Makes transformers know quant_method ``rung`` as soon as both are imported, in any order; standard library only.

``import rung`` must cost nothing, and whether a program will import transformers nobody knows then: so the registration
is put behind the import of the module that holds transformers' table of quantisers.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

TABLE = "transformers.quantizers.auto"


def install() -> None:
    """Registers now if transformers' table is there already, else when it comes."""
    if TABLE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    importlib.import_module("rung.hub.transformers")  # registers at its end, whoever imports it


class _Finder:
    """Finds the table as everybody does, and registers once it has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None for all other modules."""
        if name != TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = then_register  # type: ignore[method-assign]
        return spec
