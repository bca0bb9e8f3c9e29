"""Products with, and rows of, weights that are held in a format; as operators that ``torch.compile`` sees.

Two ways: exact products decode the weight and let torch multiply, with gradients to the activations; others go through
the ladder, whose rungs may quantize the activations. Training and whatever wants a gradient takes the exact one. Where
torch transforms functions itself, weights are decoded for its own operations: it cannot see into those of rungs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import embedding as torch_embedding
from torch.nn.functional import linear as torch_linear
from torch.utils.flop_counter import register_flop_formula

from rung import formats
from rung.core.errors import UsageError
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.nn.quantized import binding
from rung.nn.quantized.binding import parts_of
from rung.nn.quantized.weight import QuantWeight
from rung.run.torch_private import DisableTransforms, are_transforms_active, is_tracing

Parts = list[Tensor]


def linear(x: Tensor, weight: QuantWeight, exact: bool) -> Tensor:
    """x [..., columns] times the weight [rows, columns]: [..., rows], in the dtype of x."""
    rows, columns = weight.shape
    recording = recorded(x)
    if not recording and transformed():
        return torch_linear(x, _plain(weight, x.dtype))
    flat = x if x.dim() == 2 else x.reshape(-1, columns)
    wants = torch.is_grad_enabled() and x.requires_grad
    exact = exact or wants or x.dtype not in DTYPE_NAME
    if not exact and not recording:
        y = weight.linear(flat)(flat)
        return y if flat is x else y.reshape(*x.shape[:-1], rows)
    parts, shape = list(weight.parts().values()), (weight.format.name, rows, columns)
    if not recording:
        y = _Exact.apply(flat, *shape, *parts)
    else:
        y = product(flat, parts, *shape, False) if exact else infer(flat, parts, *shape)
    result: Tensor = y.reshape(*x.shape[:-1], rows)
    return result


def recorded(x: Tensor) -> bool:
    """Return whether a call with x is to be an operator's: torch makes a program of it (``torch.compile``,
    ``jit.trace``), or x has no values, or is more than a tensor.
    """
    return type(x) is not Tensor or x.is_meta or torch.compiler.is_compiling() or is_tracing()


def transformed() -> bool:
    """Return whether torch batches or differentiates the calls while they are made (``torch.func``, forward mode)."""
    return are_transforms_active() or forward_ad._current_level >= 0


def _plain(weight: QuantWeight, dtype: torch.dtype) -> Tensor:
    """The decoded weight as an ordinary tensor, whatever torch transforms around it."""
    with DisableTransforms():
        return weight.decode(dtype)


def look_up(ids: Tensor, weight: QuantWeight) -> Tensor:
    """ids int64 [...] -> rows f32 [..., columns]."""
    rows, columns = weight.shape
    if not recorded(ids) and transformed():
        return torch_embedding(ids, _plain(weight, torch.float32))
    found = rows_of(ids.reshape(-1), list(weight.parts().values()), weight.format.name, rows, columns)
    result: Tensor = found.reshape(*ids.shape, columns)
    return result


def _state(parts: Parts, format: str, rows: int, columns: int) -> binding.State:
    chosen = formats.get(format)
    return binding.state(dict(zip(parts_of(chosen, (rows, columns)), parts, strict=True)), chosen, (rows, columns))


def _operator(name: str, subject: str, more: str = "") -> Any:
    """Makes a function an operator. torch 2.6 cannot read the schema off annotations as they are written here."""
    schema = f"({subject}, Tensor[] parts, str format, SymInt rows, SymInt columns{more}) -> Tensor"
    return torch.library.custom_op(f"rung::{name}", mutates_args=(), schema=schema)


@_operator("product", "Tensor x", ", bool transposed")
def product(x: Tensor, parts: Parts, format: str, rows: int, columns: int, transposed: bool) -> Tensor:
    """x [M, columns] W^T, or x [M, rows] W when ``transposed``; W [rows, columns] decoded, sums as torch's.

    Where the device has no fast product in the dtype of x, computes in float32.
    """
    return _exact(x, parts, format, rows, columns, transposed)


def _exact(x: Tensor, parts: Parts, format: str, rows: int, columns: int, transposed: bool) -> Tensor:
    state = _state(parts, format, rows, columns)
    if not x.is_floating_point():
        raise UsageError(
            f"Activations are {x.dtype}, and a linear layer multiplies floating-point numbers",
            ["what a plain layer refuses would be cut to whole or to real numbers here"],
            ["layer(x.float())"],
        )
    dtype = x.dtype if binding.multiplies(x.device, x.dtype) else torch.float32
    inputs, step = x.to(dtype), state.stored.step * 4 // dtype.itemsize
    if rows <= step:
        whole = binding.decoded(state, inputs, 0, rows)
        return (inputs @ whole if transposed else torch_linear(inputs, whole)).to(x.dtype)
    y = torch.zeros(len(x), columns if transposed else rows, dtype=dtype, device=x.device)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        part = binding.decoded(state, inputs, first, last)
        if transposed:
            y.addmm_(inputs[:, first:last], part)
        else:
            y[:, first:last] = torch_linear(inputs, part)
    return y.to(x.dtype)


@product.register_fake
def _(x: Tensor, parts: Parts, format: str, rows: int, columns: int, transposed: bool) -> Tensor:
    return x.new_empty(x.shape[0], columns if transposed else rows)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, parts, *ctx.rest = inputs
    ctx.save_for_backward(*parts)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    parts = list(ctx.saved_tensors)
    *shape, transposed = ctx.rest
    return product(grad, parts, *shape, not transposed), [None] * len(parts), None, None, None, None


product.register_autograd(_backward, setup_context=_keep)


class _Exact(torch.autograd.Function):
    """``product`` as programs that are not compiled call it: the gradients of an operator cost a millisecond a call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, format: str, rows: int, columns: int, *parts: Tensor) -> Tensor:
        ctx.rest = (format, rows, columns)  # a setup_context apart would cost 60 microseconds a call
        ctx.save_for_backward(*parts)
        return _exact(x, list(parts), format, rows, columns, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        parts, (format, rows, columns) = list(ctx.saved_tensors), ctx.rest
        return _exact(grad, parts, format, rows, columns, True), *[None] * (3 + len(parts))


@_operator("infer", "Tensor x")
def infer(x: Tensor, parts: Parts, format: str, rows: int, columns: int) -> Tensor:
    """x [M, columns] W^T through the ladder; without gradients."""
    return binding.linear(_state(parts, format, rows, columns), x)(x)


@infer.register_fake
def _(x: Tensor, parts: Parts, format: str, rows: int, columns: int) -> Tensor:
    return x.new_empty(x.shape[0], rows)


@register_flop_formula([torch.ops.rung.product, torch.ops.rung.infer])
def _flops(x: Any, parts: Any, format: str, rows: int, columns: int, *more: Any, **named: Any) -> int:
    """Return the operations of the product of x [M, ...], as whoever counts operations of torch sees it; decoding is
    none."""
    return 2 * int(x[0]) * rows * columns


@_operator("rows", "Tensor ids")
def rows_of(ids: Tensor, parts: Parts, format: str, rows: int, columns: int) -> Tensor:
    """ids int64 [T] -> rows f32 [T, columns] of the weight; each row is decoded once."""
    state = _state(parts, format, rows, columns)
    distinct, inverse = torch.unique(ids, return_inverse=True)
    return binding.embedding(state, ids)(distinct)[inverse]


@rows_of.register_fake
def _(ids: Tensor, parts: Parts, format: str, rows: int, columns: int) -> Tensor:
    return ids.new_empty(ids.shape[0], columns, dtype=torch.float32)
