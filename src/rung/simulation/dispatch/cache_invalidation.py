"""Answers about devices that libraries ask for once and keep, forgotten when a simulation begins and when it ends."""

from __future__ import annotations

import sys

#: Modules whose cached functions ask torch what is there: ``is_torch_cuda_available`` and its like.
_MODULES = ("transformers.utils.import_utils", "accelerate.utils.imports", "accelerate.utils.environment")


def forget() -> None:
    """Empties the caches of those modules that are imported."""
    for name in _MODULES:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()
