"""The key and value cache: written by index, lengthened by the caller once a call has succeeded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import ContextTooLong
from rung.core.types import FLOAT_BYTES
from rung.formats.codec import Floats
from rung.models.card import Decoder
from rung.ops.decode_step.parts import Rows

if TYPE_CHECKING:
    from torch import Tensor

Bytes = npt.NDArray[np.uint8]
_NUMPY = {"f32": np.float32, "f16": np.float16}


class Tokens:
    """The ids of the tokens that a cache of up to ``context`` tokens holds."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.ids)

    def room(self, start: int, count: int) -> None:
        """Raises ``ContextTooLong`` when ``count`` tokens from position ``start`` on do not fit."""
        if start + count > self.context:
            raise ContextTooLong(
                f"{start + count} tokens do not fit into a context of {self.context}",
                [f"{start} tokens are held and {count} are new"],
                [f"rung run MODEL --context {start + count}", "a shorter prompt"],
            )

    def advance(self, ids: Sequence[int]) -> None:
        """Counts tokens whose keys and values have been written at ``length`` and on."""
        self.ids.extend(ids)

    def truncate(self, length: int) -> None:
        """Forgets every token from position ``length`` on."""
        del self.ids[length:]

    def shared(self, ids: Sequence[int]) -> int:
        """How many leading tokens of ``ids`` are held already."""
        count = 0
        for held, new in zip(self.ids, ids, strict=False):
            if held != new:
                break
            count += 1
        return count


class Cache(Tokens):
    """Keys and values of every layer for up to ``context`` tokens, and the ids of the tokens that are held.

    ``keys[n]`` and ``values[n]`` are [kv_heads, context, head_dim] on the device of layer n. Writing beyond
    ``length`` changes nothing that counts, so a call that failed can be repeated one rung lower.
    """

    def __init__(self, shape: Decoder, context: int, dtype: str, devices: Sequence[str]) -> None:
        """Reserves ``cache_bytes`` of ``rung.models.decoder_memory``; ``devices`` has torch's name of each layer's."""
        size = (shape.kv_heads, context, shape.head_dim * FLOAT_BYTES[dtype])
        made = {device: _reserve((2 * count, *size), device) for device, count in Counter(devices).items()}
        super().__init__(context)
        self.dtype = dtype
        self._keys = [next(made[device]) for device in devices]
        self._values = [next(made[device]) for device in devices]

    @cached_property
    def keys(self) -> list[Tensor]:
        """A tensor for each layer."""
        return [_tensor(held, self.dtype) for held in self._keys]

    @cached_property
    def values(self) -> list[Tensor]:
        """A tensor for each layer."""
        return [_tensor(held, self.dtype) for held in self._values]

    def rows(self, layer: int) -> Rows:
        """Where keys and values of a layer on the CPU lie; needs no torch."""
        keys, values = self._keys[layer], self._values[layer]
        return Rows(keys.ctypes.data, values.ctypes.data, keys.strides[0], keys.strides[1], self.dtype)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""
        end = start + keys.shape[0]
        self.keys[layer][:, start:end].copy_(keys.transpose(0, 1))
        self.values[layer][:, start:end].copy_(values.transpose(0, 1))

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Views [count, kv_heads, head_dim] of the first ``count`` positions."""
        return self.keys[layer][:, :count].transpose(0, 1), self.values[layer][:, :count].transpose(0, 1)

    def arrays(self, layer: int, count: int) -> tuple[Floats, Floats]:
        """Views of the same as arrays of f32 or f16, which may be written to; of a layer on the CPU."""
        keys, values = (
            each[layer].view(_NUMPY[self.dtype])[:, :count].transpose(1, 0, 2) for each in (self._keys, self._values)
        )
        return keys, values


def _reserve(size: tuple[int, ...], device: str) -> Iterator[Any]:
    """Zero bytes of that size, a slice of the first dimension at a time: arrays on a CPU, else tensors.

    One array of NumPy holds them all: it lies in huge pages where the system has them, and reading a long cache then
    misses fewer address translations. Pages that no token has come to are not there yet.
    """
    if device == "cpu":
        memory: Bytes = np.zeros(math.prod(size), np.uint8)
        return iter(memory.reshape(size))
    import torch

    return iter(torch.zeros(size, dtype=torch.uint8, device=device))


def _tensor(held: Any, dtype: str) -> Tensor:
    """Bytes [heads, context, width] as a tensor of that dtype, without a copy."""
    import torch

    from rung.kernels.gpu.dtypes import TORCH_DTYPE

    whole = torch.from_numpy(held) if isinstance(held, np.ndarray) else held
    return whole.view(TORCH_DTYPE[dtype])
