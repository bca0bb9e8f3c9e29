"""The state of rungs that read a weight as its format stores it: its bytes, on whatever device asks for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rung.formats import Encoded
from rung.kernels.cpu.pack.decoding import decode, narrow

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Float32 bytes that are decoded at once.
SLAB = 32 << 20
#: Formats of 16 bits, as they are named here and by torch.
_NARROW = {"torch.float16": "f16", "torch.bfloat16": "bf16"}


def rows_of_slab(columns: int) -> int:
    """Return how many rows of a weight are decoded at once."""
    return max(1, SLAB // (4 * max(columns, 1)))


@dataclass(eq=False)
class Stored:
    """A weight as it is stored, the name of the dtype to compute in, and its parts as tensors by device.

    Nothing here imports torch before a tensor is asked for.
    """

    encoded: Encoded
    dtype_name: str
    threads: int
    parts: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @cached_property
    def dtype(self) -> torch.dtype:
        """torch's dtype to compute in."""
        from rung.kernels.gpu.dtypes import TORCH_DTYPE

        return TORCH_DTYPE[self.dtype_name]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.encoded.shape

    @property
    def step(self) -> int:
        """Rows of a slab."""
        return rows_of_slab(self.shape[1])

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The parts there; copied once."""
        parts = self.parts.get(str(device))
        if parts is None:
            parts = {name: _tensor(part).to(device) for name, part in self.encoded.parts.items()}
            self.parts[str(device)] = parts
        return parts

    def decode(self, first: int, last: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The rows [first, last) in ``dtype`` there: decoded there for common formats, else on the CPU without torch.

        On a CPU numpy is twice as fast (q4_k) as the decoders in torch, and a kernel for nf4 and fp4 faster still.
        """
        import torch

        from rung.kernels.gpu import decoders

        format = self.encoded.format
        decoder = decoders.find(format)
        if decoder is None or (device.type == "cpu" and format.family != "floats"):
            if device.type == "cpu" and dtype.itemsize == 2:
                return self._narrow(first, last, dtype)
            values = decode(self.encoded, slice(first, last), self.threads)
            return torch.from_numpy(values).to(device, dtype)
        return decoder(self.on(device), self.encoded, first, last).to(dtype)

    def read(self, first: int, last: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The same to be read only: where 16 bits are stored as such, it is the weight itself."""
        if _NARROW.get(str(dtype)) == self.encoded.format.name:
            return self.on(device)["data"][first:last].view(dtype)
        return self.decode(first, last, device, dtype)

    def _narrow(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        """The rows [first, last) in 16 bits, by a kernel or a slab of float32 at a time.

        Their memory is numpy's, which asks for huge pages: clearing small ones took longer than decoding.
        """
        import torch

        bits = narrow(self.encoded, _NARROW[str(dtype)], slice(first, last), self.threads)
        if bits is not None:
            return torch.from_numpy(bits).view(dtype)
        values = torch.from_numpy(np.empty((last - first, self.shape[1]), np.uint16)).view(dtype)
        for start in range(first, last, self.step):
            end = min(start + self.step, last)
            values[start - first : end - first] = torch.from_numpy(
                decode(self.encoded, slice(start, end), self.threads)
            )
        return values


def _tensor(part: np.ndarray) -> Tensor:
    """A view of an array; that of a mapped file cannot be written, and nobody does."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(part))


def prepare(encoded: Encoded, dtype: str, threads: int) -> Stored:
    """The state; a weight in f32 computes in f32 whatever the plan's dtype."""
    chosen = "f32" if encoded.format.name == "f32" else dtype
    return Stored(encoded, chosen, threads)
