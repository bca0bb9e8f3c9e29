"""Products of 16-bit matrices with a result in float32 (``out_dtype=``), which torch has for GPUs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import has_kernel

_NAMES = ("mm", "bmm", "addmm", "baddbmm")
_libraries: list[torch.library.Library] = []


def install() -> None:
    """Puts them under the processor's key where this torch knows such products and has no kernel for them."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in _NAMES:
        overloads = getattr(torch.ops.aten, name).overloads()
        for overload, kernel in (("dtype", _wide(name)), ("dtype_out", _written(name))):
            full = f"{name}.{overload}"
            if overload in overloads and not has_kernel(f"aten::{full}", "CPU"):
                library.impl(full, kernel, "CPU")


def _wide(name: str) -> Callable[..., Tensor]:
    """The product, computed in the dtype of the result: the exact products of 16-bit numbers, added there."""
    function = getattr(torch, name)

    def product(*args: Any, **kwargs: Any) -> Tensor:
        *operands, dtype = args
        result: Tensor = function(*(operand.to(dtype) for operand in operands), **kwargs)
        return result

    return product


def _written(name: str) -> Callable[..., Tensor]:
    compute = _wide(name)

    def product(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.copy_(compute(*args, **kwargs))

    return product
