"""gsplat: its trainers draw with rung's rungs, on devices that gsplat has no code for.

``install()`` puts ``rung.splats.rasterization`` where programs look for gsplat's. A program that has said
``from gsplat import rasterization`` before keeps gsplat's: install first.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from rung.core.errors import UsageError
from rung.nn.splatting import rasterization

_PLACES = ("gsplat", "gsplat.rendering")
_theirs: dict[str, Any] = {}


def _modules() -> list[ModuleType]:
    try:
        return [importlib.import_module(name) for name in _PLACES]
    except ImportError as error:
        raise UsageError("gsplat is not installed.", [str(error)], ["pip install gsplat"]) from error


def install() -> None:
    """Replaces ``gsplat.rasterization``; twice is harmless. Raises ``UsageError`` without gsplat."""
    for module in _modules():
        _theirs.setdefault(module.__name__, module.rasterization)
        module.rasterization = rasterization  # type: ignore[attr-defined]


def uninstall() -> None:
    """Puts gsplat's function back."""
    for module in _modules() if _theirs else []:
        module.rasterization = _theirs.pop(module.__name__)  # type: ignore[attr-defined]
