"""gsplat: its trainers draw with rung's rungs, on devices that gsplat has no code for.

``install()`` puts ``rung.splats.rasterization`` where programs look for gsplat's, and what gsplat's strategies ask of
its kernels where they look for that. A program that has said ``from gsplat import rasterization`` before keeps
gsplat's: install first. nerfstudio's splatfacto, which draws through gsplat, says ``.cuda()`` itself, and then stays on
its device.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rung.core.errors import UsageError
from rung.hub import register
from rung.splats.rasterize import rasterization
from rung.splats.training.strategies import COPIES, covariances, divided


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
#: The model of nerfstudio says ``.cuda()`` in these, whatever its device is (1.1.5).
_SPLATFACTO, _SAYING_CUDA = "nerfstudio.models.splatfacto", ("populate_modules", "get_outputs")
_theirs: dict[tuple[Any, str], Any] = {}


class _CudaIs(TorchFunctionMode):
    """Inside, ``tensor.cuda()`` moves to ``device``; None: nowhere."""

    def __init__(self, device: torch.device | None) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cuda:
            return args[0] if self.device is None else args[0].to(self.device)
        return func(*args, **(kwargs or {}))


def _on_its_device(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def here(model: Any, *args: Any, **kwargs: Any) -> Any:
        with _CudaIs(getattr(model, "device", None)):  # it has none until it is built
            return method(model, *args, **kwargs)

    return here


def _free_splatfacto() -> None:
    model = importlib.import_module(_SPLATFACTO).SplatfactoModel
    for name in _SAYING_CUDA:
        _replace(model, name, _on_its_device(getattr(model, name)))


def _replace(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    if (owner, name) not in _theirs:
        _theirs[owner, name] = getattr(owner, name)
        setattr(owner, name, ours)


def install() -> None:
    """Replaces gsplat's functions, and lets nerfstudio's splatfacto, now or when it is imported, stay on its device;
    twice is harmless. Raises ``UsageError`` without gsplat."""
    for target, functions in _PLACES.items():
        try:
            module = importlib.import_module(target)
        except ImportError as error:
            raise UsageError("gsplat is not installed.", [str(error)], ["pip install gsplat"]) from error
        for name, ours in functions.items():
            _replace(module, name, ours)
    register.after_import(_SPLATFACTO, _free_splatfacto)


def uninstall() -> None:
    """Puts all of it back."""
    register.forget(_SPLATFACTO)
    while _theirs:
        (owner, name), theirs = _theirs.popitem()
        setattr(owner, name, theirs)
