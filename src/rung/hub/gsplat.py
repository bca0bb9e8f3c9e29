"""gsplat: its trainers draw with rung's rungs, on devices that gsplat has no code for.

``install()`` puts ``rung.splats.rasterization`` where programs look for gsplat's, and what gsplat's strategies ask of
its kernels where they look for that. A program that has said ``from gsplat import rasterization`` before keeps
gsplat's: install first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rung.core.errors import UsageError
from rung.nn.growing import COPIES, covariances, divided
from rung.nn.splatting import rasterization


def _covariances(
    quats: Tensor, scales: Tensor, compute_covar: bool = True, compute_preci: bool = True, triu: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """``gsplat.quat_scale_to_covar_preci`` as its strategies call it: whole matrices."""
    if triu:
        raise UsageError("triu=True is not computed by rung.", [], ["triu=False gives the whole matrices"])
    covars = covariances(quats, scales) if compute_covar else None
    return covars, covariances(quats, 1 / scales) if compute_preci else None


def _relocation(opacities: Tensor, scales: Tensor, ratios: Tensor, binoms: Tensor) -> tuple[Tensor, Tensor]:
    """``gsplat.relocation.compute_relocation``: opacities [N] or [N, 1] and scales [N, 3] of ``ratios`` [N] copies."""
    faint, small = divided(opacities.flatten(), scales, ratios.clamp(1, COPIES))
    return faint.view_as(opacities), small


#: What is put where.
_PLACES: dict[str, dict[str, Callable[..., Any]]] = {
    "gsplat": {"rasterization": rasterization},
    "gsplat.rendering": {"rasterization": rasterization},
    "gsplat.strategy.ops": {"quat_scale_to_covar_preci": _covariances, "compute_relocation": _relocation},
}
_theirs: dict[tuple[str, str], Any] = {}


def install() -> None:
    """Replaces gsplat's functions; twice is harmless. Raises ``UsageError`` without gsplat."""
    for place, functions in _PLACES.items():
        try:
            module = importlib.import_module(place)
        except ImportError as error:
            raise UsageError("gsplat is not installed.", [str(error)], ["pip install gsplat"]) from error
        for name, ours in functions.items():
            _theirs.setdefault((place, name), getattr(module, name))
            setattr(module, name, ours)


def uninstall() -> None:
    """Puts gsplat's functions back."""
    while _theirs:
        (place, name), theirs = _theirs.popitem()
        setattr(importlib.import_module(place), name, theirs)
