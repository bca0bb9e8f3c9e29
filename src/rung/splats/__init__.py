"""Gaussian splats on the device that is there: ``rasterization`` draws them, ``read`` and ``write`` keep their files,
``scene`` reads the cameras of photographs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import rung.engine  # noqa: F401  how torch's threads wait, which must be said before it is imported

if TYPE_CHECKING:
    from rung.splats.cloud import Cloud
    from rung.splats.files import read, write
    from rung.splats.rasterize import rasterization
    from rung.splats.scenes import scene

__all__ = ["Cloud", "rasterization", "read", "scene", "write"]

_PLACES = {"Cloud": "splats.cloud", "read": "splats.files", "write": "splats.files", "scene": "splats.scenes"}
_PLACES["rasterization"] = "splats.rasterize"  # which imports torch; files and scenes need none


def __getattr__(name: str) -> Any:
    """Each when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"rung.{_PLACES[name]}"), name)
