"""Hold what is known of an operation of torch, found out at its first call, and what a card does with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import has_kernel
from rung.simulation import refusals
from rung.simulation.defects import Defect
from rung.simulation.dispatch.dispatch_hook import is_view
from rung.simulation.simulation import Card

_MATMUL = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "_int_mm", "_scaled_mm",
    "_addmm_activation", "linear", "matmul",
)  # fmt: skip
_SIZE_FIRST = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "empty_strided")
_SIZE_SECOND = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
_SAME_SIZE = ("_to_copy", "clone", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
#: Operations that take tensors of two devices: copies, and those whose indices or lengths may stay on the host.
_MIXES = (
    "copy_", "_to_copy", "set_", "lift_fresh", "index", "index_put", "index_put_", "_index_put_impl_",
    "_unsafe_index", "record_stream", "_pack_padded_sequence", "_pin_memory", "resize_as_",
)  # fmt: skip
#: Those whose indices may stay on the host, but not lie on a card where the tensor does not.
_INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
#: Operations made of others that a GPU does in one kernel, or in none, without memory in between. In inference mode
#: they come whole; all others are taken apart.
_WHOLE = (
    "linear", "reshape", "contiguous", "flatten", "unflatten", "to", "type_as", "softmax", "log_softmax", "dropout",
    "chunk", "split", "expand_as", "view_as", "layer_norm", "rms_norm", "group_norm",
)  # fmt: skip
_NEVER_KERNELS = ("empty", "new_empty", "_to_copy", "copy_", "set_", "lift")
_UNKNOWN: Any = object()


class Operation:
    """One operation: ``kind`` as capabilities and defects name it, and what its schema says.

    ``view``: the result shares the memory of an argument. ``fresh``: it is new memory. ``whole``: made of others, but
    a single kernel on a card; ``composite``: made of others; ``custom``: of another library, made of any.
    ``launches``: it runs a kernel. ``defects``: whether the simulation has any.
    """

    def __init__(self, func: Any, *, defects: bool = False) -> None:
        schema = func._schema
        self.name: str = schema.name.split("::")[1]
        self.kind = _kind(self.name)
        self.composite = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
        self.whole = self.composite and self.name in _WHOLE
        self.custom = func.namespace not in ("aten", "prims", "rung")
        self.mixes = self.name in _MIXES
        self.indexes = self.name in _INDEXES
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.arguments = [argument.name for argument in schema.arguments]
        self.sized = self.name in (*_SIZE_FIRST, *_SIZE_SECOND, *_SAME_SIZE)
        shares = is_view(schema)
        self.view = shares and not self.composite and not self.name.startswith("lift")
        self.fresh = any(result.alias_info is None or shares for result in schema.returns)
        #: How many of its results lie on the card; lengths of sequences stay on the host.
        self.kept = 1 if self.name == "_pack_padded_sequence" else None
        self.launches = not (shares or self.name.startswith(_NEVER_KERNELS))
        #: Whether nothing is special about it once its tensors lie on one card.
        self.plain = not (defects or self.composite or self.custom or self.random or self.sized)
        self._failures: dict[tuple[int, torch.dtype], Callable[[], Exception] | None] = {}

    def failure(self, card: Card, dtype: torch.dtype) -> Callable[[], Exception] | None:
        """Return a function that makes the error of this operation in that dtype; None where the card does it."""
        found = self._failures.get((card.index, dtype), _UNKNOWN)
        if found is _UNKNOWN:
            found = self._failures[card.index, dtype] = self._judge(card, dtype)
        result: Callable[[], Exception] | None = found
        return result

    def _judge(self, card: Card, dtype: torch.dtype) -> Callable[[], Exception] | None:
        for defect in self._defects(card, dtype):
            if defect.exception is not None:
                return lambda exception=defect.exception, text=defect.text: exception(text)  # type: ignore[misc]
        return refusals.refusal(card, self.name, self.kind, refusals.DTYPE_NAMES.get(dtype, ""))

    def spoils(self, card: Card, dtype: torch.dtype) -> bool:
        """Return whether a defect makes the results NaN."""
        return self.launches and any(defect.exception is None for defect in self._defects(card, dtype))

    def _defects(self, card: Card, dtype: torch.dtype) -> list[Defect]:
        name = refusals.DTYPE_NAMES.get(dtype, "")
        return [defect for defect in card.world.defects if defect.hits(self.name, self.kind, name)]

    def bytes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """The size of the result where the arguments tell it, so that it is refused before it is made."""
        dtype = kwargs.get("dtype")
        if self.name in _SAME_SIZE:
            result: int | None = int(args[0].numel()) * (dtype or args[0].dtype).itemsize
            return result
        sizes = [a for a in args if isinstance(a, (list, tuple))]
        if not sizes:
            return None
        like = args[0].dtype if self.name in _SIZE_SECOND else torch.get_default_dtype()
        return math.prod(int(n) for n in sizes[0]) * (dtype or like).itemsize

    def argument(self, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The name of the argument that a tensor is; empty when it is none."""
        for name, value in (*zip(self.arguments, args, strict=False), *kwargs.items()):
            if value is tensor or (isinstance(value, (list, tuple)) and any(v is tensor for v in value)):
                return str(name)
        return ""


def _kind(name: str) -> str:
    if name in _MATMUL:
        return "matmul"
    if "attention" in name:
        return "attention"
    return "convolution" if "convolution" in name else "elementwise"
