"""The key and value cache: written by index, lengthened by the caller once a call has succeeded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from rung.core.errors import ContextTooLong
from rung.models.card import Decoder

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _reserve(size: tuple[int, ...], dtype: str, device: torch.device) -> Iterator[Tensor]:
    """Zeros of that size, a slice of the first dimension at a time.

    On a CPU one array of NumPy holds them all: it lies in huge pages where the system has them, and reading a long
    cache then misses fewer address translations.
    """
    if device.type != "cpu":
        return iter(torch.zeros(size, dtype=DTYPES[dtype], device=device))
    width = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    memory = torch.from_numpy(np.empty(math.prod(size) * width, dtype=np.uint8)).zero_()
    return iter(memory.view(DTYPES[dtype]).view(size))


class Cache:
    """Keys and values of every layer for up to ``context`` tokens, and the ids of the tokens that are held.

    ``keys[n]`` and ``values[n]`` are [kv_heads, context, head_dim] on the device of layer n. Writing beyond
    ``length`` changes nothing that counts, so a call that failed can be repeated one rung lower.
    """

    def __init__(self, shape: Decoder, context: int, dtype: str, devices: Sequence[torch.device]) -> None:
        """Reserves ``cache_bytes`` of ``rung.models.footprint``; ``devices`` has one device a layer."""
        size = (shape.kv_heads, context, shape.head_dim)
        made = {device: _reserve((2 * count, *size), dtype, device) for device, count in Counter(devices).items()}
        self.context = context
        self.dtype = dtype
        self.keys = [next(made[device]) for device in devices]
        self.values = [next(made[device]) for device in devices]
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
                [f"rung run --context {start + count}", "a shorter prompt"],
            )

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""
        end = start + keys.shape[0]
        self.keys[layer][:, start:end].copy_(keys.transpose(0, 1))
        self.values[layer][:, start:end].copy_(values.transpose(0, 1))

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Views [count, kv_heads, head_dim] of the first ``count`` positions."""
        return self.keys[layer][:, :count].transpose(0, 1), self.values[layer][:, :count].transpose(0, 1)

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
