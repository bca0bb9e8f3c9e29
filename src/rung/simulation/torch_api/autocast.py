"""``torch.autocast`` on the simulated card: torch's own list of operations for its kind of device, carried out here.

torch has a kernel for each of them under a dispatch key of the kind (``AutocastCUDA``), which casts tensors that it
takes for the card's. To it those of a simulated card are the processor's. So while a simulation has seen an
``autocast`` for its card, other kernels stand there, and threads that are inside of such a block ask for the key. What
they cast, and to what, is what ``ATen/autocast_mode.h`` says.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rung.run.torch_private import (
    DispatchKey,
    DispatchKeySet,
    ExcludeKeys,
    include_key,
    operators_with_kernel,
    to_dtype,
)
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import HOST, Card, World
from rung.simulation.torch_api.placement import where

#: Computed in the dtype of the block; what is in none of these lists is computed in f32.
_LOWER = (
    "_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "cudnn_convolution",
    "cudnn_convolution_transpose", "_mps_convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm",
    "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
#: But in f32 on Macs.
_NOT_LOWER = (("mps", "conv_transpose3d.input"),)
#: Computed in what is given, with a result in f32.
_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
#: The same, where another overload takes the dtype.
_OVERLOADS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
#: Computed in the widest dtype among their tensors.
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip
_REFUSED = {
    "binary_cross_entropy": "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
}
_include = include_key
_HOST = DispatchKeySet(DispatchKey.AutocastCPU)
_to = to_dtype
Policy = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Autocast:
    """The kernels of the card's dispatch key, and the casts of weights that a block keeps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._name = f"Autocast{world.type.upper()}"
        self._key: Any = getattr(DispatchKey, self._name)
        self._without = DispatchKeySet(self._key)
        self._without_both = self._without | _HOST
        self._library: Any = None
        self._lock = threading.Lock()
        self._casts: Any = WeakIdKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Puts it in force."""
        enable, clear, kind = torch.set_autocast_enabled, torch.clear_autocast_cache, self._world.type

        def enabled(*args: Any, **kwargs: Any) -> None:
            enable(*args, **kwargs)
            now = torch.is_autocast_enabled(kind)
            if now:
                self._learn()
            _include(self._key, now)

        def cleared() -> None:
            clear()
            self._casts.clear()

        patches.set(torch, "set_autocast_enabled", enabled)
        patches.set(torch, "clear_autocast_cache", cleared)

    def remove(self) -> None:
        """Takes the kernels away again."""
        _include(self._key, False)
        if self._library is not None:
            self._library._destroy()

    def _learn(self) -> None:
        with self._lock:
            if self._library is not None:
                return
            self._library = torch.library.Library("aten", "IMPL", self._name)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
                for full in operators_with_kernel(self._name):
                    library, _, name = full.partition("::")
                    if library == "aten":
                        self._library.impl(name, self._kernel(name))

    def _kernel(self, name: str) -> Callable[..., Any]:
        overload = _overload(name)
        operation, carried_out = overload._op, self._policy(overload, name)

        def computed(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(where(self._world, t), Card) for t in _tensors((*args, *kwargs.values()))):
                with ExcludeKeys(self._without_both):
                    return carried_out(args, kwargs)
            with ExcludeKeys(self._without):
                return operation(*args, **kwargs)

        return computed

    def _policy(self, overload: Any, name: str) -> Policy:
        """Return the policy for an operation with a tensor on the card."""
        if name in _REFUSED:
            return lambda args, kwargs: _refuse(_REFUSED[name])
        if name in _RESULT:
            return self._with_result(overload)
        if name in _OVERLOADS:
            return self._by_overload(overload, _overload(_OVERLOADS[name]))
        operation, dtype = overload._op, _f32
        if name in _WIDEST:
            dtype = self._widest
        elif name in _LOWER and (self._world.type, name) not in _NOT_LOWER:
            dtype = self._lower

        def cast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            to = dtype((*args, *kwargs.values()))
            return operation(*(self._cast(a, to) for a in args), **{k: self._cast(v, to) for k, v in kwargs.items()})

        return cast

    def _lower(self, values: Any = ()) -> torch.dtype:
        return torch.get_autocast_dtype(self._world.type)

    def _widest(self, values: tuple[Any, ...]) -> torch.dtype:
        found = lower = self._lower()
        for tensor in _tensors(values):
            if self._is_eligible(tensor):
                if torch.float32 in (found, tensor.dtype):
                    found = torch.float32
                elif tensor.dtype is not lower:
                    _refuse("Unexpected floating ScalarType in at::autocast::prioritize")
        return found

    def _with_result(self, overload: Any) -> Policy:
        operation, names = overload._op, [argument.name for argument in overload._schema.arguments]

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            arguments = dict(zip(names, args, strict=False)) | kwargs
            if self._is_eligible(args[0]) and arguments.get("dtype") is None:
                arguments["dtype"] = torch.float32
            return operation(**arguments)

        return call

    def _by_overload(self, overload: Any, wider: Any) -> Policy:
        defaults = [argument.default_value for argument in overload._schema.arguments]

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self._is_eligible(args[0]):
                return overload(*args, **kwargs)
            return wider(*args, *defaults[len(args) :], dtype=torch.float32)

        return call

    def _is_eligible(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one that the card's ``autocast`` casts."""
        floating = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return floating and where(self._world, tensor) is not HOST

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            return self._casted(value, dtype) if value.dtype is not dtype and self._is_eligible(value) else value
        return [self._cast(v, dtype) for v in value] if isinstance(value, (list, tuple)) else value

    def _casted(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in that dtype. The block keeps that of a weight, with its gradient, whoever asks first."""
        weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32 and not tensor._is_view()
        keeps = torch.is_autocast_cache_enabled() and not torch.is_inference_mode_enabled()
        if not (weight and keeps and dtype is self._lower()):
            plain: Tensor = _to(tensor, dtype)
            return plain
        with self._lock:
            kept = self._casts.get(tensor)
            if kept is None:
                with torch.enable_grad():
                    kept = self._casts[tensor] = _to(tensor, dtype)
            result: Tensor = kept
            return result


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _f32(values: Any) -> torch.dtype:
    return torch.float32


def _refuse(text: str) -> None:
    raise RuntimeError(text)
