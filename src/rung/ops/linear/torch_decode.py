"""A linear that decodes a slab of the weight and multiplies it with the vendor's matmul, on any torch device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded

#: Bytes of float32 weights that are decoded at once.
SLAB = 32 << 20
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class State:
    """The stored weight, the dtype to multiply in, and for floats the weight as a torch tensor over the same bytes."""

    encoded: Encoded
    dtype: torch.dtype
    floats: Tensor | None


class Decode:
    """See ``rung.ops.linear``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> State:
        """Keeps the weight as it is stored."""
        floats = None
        if encoded.format.name in DTYPES:
            stored = DTYPES[encoded.format.name]
            data = torch.frombuffer(encoded.parts["data"].reshape(-1).data, dtype=torch.uint8)
            floats = data.view(stored).view(encoded.shape)
        return State(encoded, DTYPES[dtype], floats)

    def apply(self, state: State, x: Tensor) -> Tensor:
        """[T, in] -> [T, out] in the dtype of ``x``."""
        rows, columns = state.encoded.shape
        out = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
        left = x.to(state.dtype)
        step = max(SLAB // (4 * columns), 1)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            slab = self._slab(state, first, last).to(x.device, state.dtype)
            out[:, first:last] = (left @ slab.T).to(x.dtype)
        return out

    def _slab(self, state: State, first: int, last: int) -> Tensor:
        if state.floats is not None:
            return state.floats[first:last]
        return torch.from_numpy(formats.decode(state.encoded, slice(first, last)))

    def restore(self, state: State) -> Encoded:
        """The stored weight."""
        return state.encoded


RUNG = Decode()
