"""Compare results of an emulated processor with independent ones; each module has ``checks()``, a function by name.

A check returns what is wrong, empty where nothing is. Nothing here needs torch: what torch computed is kept in files
(``keeping``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

from rung.core.registry import module_names

Check = Callable[[], str]
#: Where kernels are compiled at all comes first, and last what no check has run.
_FIRST, _LAST = "products", "completeness"


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name, of every module that has some."""
    names = [name for name in module_names(__path__) if name not in (_FIRST, _LAST) and not name.startswith("_")]
    for name in (_FIRST, *names, _LAST):
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "checks"):
            yield from module.checks()
