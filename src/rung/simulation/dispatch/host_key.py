"""Which tensors lie on the host where the processor itself stands in for a card: a bit in their set of dispatch keys.

There a tensor is the card's unless it bears the bit. Operations on the card's tensors therefore run as fast as they
do without rung. Those on tensors of the host meet the key ``Fake``, which torch leaves empty, and what stands there
hands the bit on to what they return. Views, ``detach``, ``.data`` and parameters take it along by themselves: torch
copies the set. Python has no way to set a bit, so it is set in memory, where a search has found the set.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from rung.core.errors import SoftwareMissing
from rung.run.torch_private import DispatchKey, DispatchKeySet, dispatch_keys, parse_dispatch_key

KEY: Any = parse_dispatch_key("Fake")
_BIT: int = DispatchKeySet(KEY).raw_repr()
_keys_of = dispatch_keys
#: What tensors of all layouts in the processor's memory have in common. Their ``device`` may be replaced, and modes too
#: would be asked for it.
_PROCESSOR: int = DispatchKeySet(DispatchKey.CPU).raw_repr() & DispatchKeySet(DispatchKey.SparseCPU).raw_repr()
#: Bytes of a tensor of torch that are searched; it takes about 200.
_SEARCHED = 256


def marks(tensor: Tensor) -> bool:
    """Return whether the tensor bears the bit."""
    return bool(_keys_of(tensor).has(KEY))


def on_card(tensor: Tensor) -> bool:
    """Return whether the tensor is the card's: in the processor's memory, without the bit."""
    return bool(_keys_of(tensor).raw_repr() & (_PROCESSOR | _BIT) == _PROCESSOR)


def mark(tensor: Tensor) -> None:
    """Sets the bit, but in a tensor of no device (meta) or of another one."""
    if _keys_of(tensor).raw_repr() & _PROCESSOR:
        _set_of(tensor).value |= _BIT


def unmark(tensor: Tensor) -> None:
    """Clears the bit."""
    _set_of(tensor).value &= ~_BIT


class unmarked:  # noqa: N801 (a block: with unmarked(tensor))
    """While in the block the tensor does not bear the bit: for the few functions of torch that take it for a type."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._before = tensor, marks(tensor)

    def __enter__(self) -> None:
        if self._before:
            unmark(self._tensor)

    def __exit__(self, *_: object) -> None:
        if self._before:
            mark(self._tensor)


def _set_of(tensor: Tensor) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(tensor._cdata + _offset())


@functools.cache
def _offset() -> int:
    """Where the set lies in a tensor: the one place that holds it in tensors of four kinds, and that takes the bit.

    Raises ``SoftwareMissing`` for a torch whose tensors are made otherwise.
    """
    one = torch.ones(2)
    samples = (one, torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2, requires_grad=True))
    found = set.intersection(*map(_places_of_the_set, samples))
    if len(found) == 1:
        offset = found.pop()
        ctypes.c_uint64.from_address(one._cdata + offset).value |= _BIT
        if marks(one):
            return offset
    raise SoftwareMissing(
        f"torch {torch.__version__} does not show where its tensors keep their dispatch keys.",
        [f"{len(found)} places hold them, one is expected"],
        ["pip install torch==2.13.0"],
    )


def _places_of_the_set(tensor: Tensor) -> set[int]:
    value, start = _keys_of(tensor).raw_repr(), tensor._cdata
    return {at for at in range(0, _SEARCHED, 8) if ctypes.c_uint64.from_address(start + at).value == value}
