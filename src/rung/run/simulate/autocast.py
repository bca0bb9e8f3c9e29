"""``torch.autocast`` on the simulated card: its lists of operations, carried out on the CPU.

torch keeps a list for each kind of device. Products come in the same 16 bits on both; what a GPU keeps in f32
(``AT_FORALL_FP32`` and its sisters in ``ATen/autocast_mode.h``) the list of CPUs does not have, so those operations are
added to it while a simulation has seen an ``autocast`` for its card.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.simulate.patches import Patches
from rung.run.simulate.world import World

_FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "prod", "prod.dim_int",
    "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum",
    "sum.dim_IntList",
)  # fmt: skip
_KEY = torch._C.DispatchKey.AutocastCPU
_HALF = (torch.float16, torch.bfloat16)


class Autocast:
    """The stand-in for the two ends of ``with torch.autocast(...)``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._library: Any = None
        self._lock = threading.Lock()
        self._enter, self._exit = torch.autocast.__enter__, torch.autocast.__exit__

    def install(self, patches: Patches) -> None:
        """Puts it in force."""
        begin, end, world = self._enter, self._exit, self._world

        def entered(block: Any) -> Any:
            result = begin(block)
            if block.device == world.type:
                self._learn()
                block._rung_before = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
                torch.set_autocast_enabled("cpu", block._enabled)
                torch.set_autocast_dtype("cpu", block.fast_dtype)
            return result

        def left(block: Any, *exception: Any) -> Any:
            if block.device == world.type:
                enabled, dtype = block._rung_before
                torch.set_autocast_enabled("cpu", enabled)
                torch.set_autocast_dtype("cpu", dtype)
            return end(block, *exception)

        patches.set(torch.autocast, "__enter__", entered)
        patches.set(torch.autocast, "__exit__", left)

    def remove(self) -> None:
        """Takes the added operations away again."""
        if self._library is not None:
            self._library._destroy()

    def _learn(self) -> None:
        with self._lock:
            if self._library is None:
                self._library = torch.library.Library("aten", "IMPL", "AutocastCPU")
                for name in _FP32:
                    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
                        self._library.impl(name, _in_f32(name))


def _in_f32(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
    without = torch._C.DispatchKeySet(_KEY)

    def computed(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(without):
            return operation(*(_wide(a) for a in args), **{key: _wide(value) for key, value in kwargs.items()})

    return computed


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALF else value
    return [_wide(v) for v in value] if isinstance(value, list) and value and isinstance(value[0], Tensor) else value
