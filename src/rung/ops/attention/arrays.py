"""Tensors on a CPU as arrays that share their memory: what the compiled rungs compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

#: NumPy has no bfloat16: its words stand for it.
_NAMES = {"float32": "f32", "float16": "f16", "uint16": "bf16"}


def as_arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Return views of tensors on the CPU; of bfloat16 the words."""
    import torch

    return tuple((t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).detach().numpy() for t in tensors)


def dtype_of(array: np.ndarray) -> str:
    """Return rung's name of the dtype of a cache."""
    return _NAMES[array.dtype.name]
