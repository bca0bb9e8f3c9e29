"""Makes transformers and diffusers know quant_method ``rung`` as soon as they and rung are imported, in any order;
standard library only.

``import rung`` must cost nothing, and whether a program will import them nobody knows then: so the registration is put
behind the import of the modules that hold their tables of quantisers.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

TABLE = "transformers.quantizers.auto"
DIFFUSERS_TABLE = "diffusers.quantizers.auto"
#: Modules that register at their end, whoever imports them, by the table that they add to.
_REGISTERING = {TABLE: "rung.hub.transformers", DIFFUSERS_TABLE: "rung.hub.diffusers"}


def install() -> None:
    """Registers now where a table is there already, else when it comes."""
    for table in _REGISTERING:
        if table in sys.modules:
            importlib.import_module(_REGISTERING[table])
        elif not any(isinstance(finder, _Finder) and finder.table == table for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder(table))


class _Finder:
    """Finds a table as everybody does, and registers once it has been executed."""

    def __init__(self, table: str) -> None:
        self.table = table

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None for all other modules."""
        if name != self.table:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(_REGISTERING[name])

            spec.loader.exec_module = then_register  # type: ignore[method-assign]
        return spec
