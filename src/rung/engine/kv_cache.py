"""The key and value cache: a pool of blocks of positions, and the blocks that a sequence has taken of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import ContextTooLong, OutOfMemory
from rung.core.types import FLOAT_BYTES
from rung.formats.codec import Floats
from rung.models.card import Decoder
from rung.ops.decode_step.parts import LayerLayout

if TYPE_CHECKING:
    from torch import Tensor

Bytes = npt.NDArray[np.uint8]
_NUMPY = {"f32": np.float32, "f16": np.float16}
#: Positions of a block are a multiple of it.
_LANES = 16


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


class _Group:
    """Blocks of the layers that see the same positions on the same device: memory, and how many use each block."""

    def __init__(self, device: str, blocks: int, block_bytes: int) -> None:
        self.device = device
        self.memory = _reserve(blocks, block_bytes, device)
        self.uses = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def base(self) -> int:
        """Return the address of the first block, of a group on the CPU."""
        return int(self.memory.ctypes.data)

    @property
    def free(self) -> int:
        """Return how many blocks nobody has."""
        return len(self._free)

    def take(self) -> int:
        """Return a block that nobody had. Raises ``OutOfMemory``."""
        if not self._free:
            raise OutOfMemory("The cache of keys and values is full.", [f"all {len(self.uses)} blocks are in use"])
        block = self._free.pop()
        self.uses[block] = 1
        return block

    def give_back(self, block: int) -> None:
        """Count one user less."""
        self.uses[block] -= 1
        if not self.uses[block]:
            self._free.append(block)


class BlockPool:
    """The memory of caches; see ``rung.ops.decode_step.parts.Pool``.

    ``block`` are the positions of a block, 0 for those of a whole sequence; ``blocks`` how many there are in each
    group, by default those of one sequence.
    """

    def __init__(
        self,
        shape: Decoder,
        context: int,
        dtype: str,
        devices: Sequence[str],
        block: int = 0,
        blocks: int | None = None,
    ) -> None:
        """Reserve the memory; ``devices`` has torch's name of each layer's."""
        self.context, self.dtype = context, dtype
        self.block = block or -(-context // _LANES) * _LANES
        self.heads, self.size = shape.kv_heads, shape.head_dim
        width = FLOAT_BYTES[dtype]
        row, head = self.size * width, self.block * self.size * width
        both = 2 * self.heads * head
        keys = [(layer.window, device) for layer, device in zip(shape.layers, devices, strict=True)]
        self._names = list(dict.fromkeys(keys))
        self._layers, counts = [], [0] * len(self._names)
        for key in keys:
            group = self._names.index(key)
            self._layers.append(LayerLayout(group, counts[group] * both, self.heads * head, head, row))
            counts[group] += 1
        self.per_sequence = -(-context // self.block)
        count = self.per_sequence if blocks is None else blocks
        self.members = [
            _Group(device, count, layers * both) for (_, device), layers in zip(self._names, counts, strict=True)
        ]

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return len(self.members)

    def layer(self, index: int) -> LayerLayout:
        """Return where a layer lies."""
        return self._layers[index]

    @cached_property
    def arrays(self) -> list[tuple[Any, Any]]:
        """Keys and values of each layer on the CPU, [blocks, kv_heads, block, head_dim] of f32 or f16."""
        return [
            self._views(index, self.members[lies.group].memory, self.dtype) for index, lies in enumerate(self._layers)
        ]

    @cached_property
    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """The same as tensors, on any device, without a copy."""
        return [
            self._views(index, _tensor(self.members[lies.group].memory), self.dtype)
            for index, lies in enumerate(self._layers)
        ]

    def _views(self, index: int, memory: Any, dtype: str) -> tuple[Any, Any]:
        lies = self._layers[index]
        keys, values = (memory[:, at : at + lies.values] for at in (lies.offset, lies.offset + lies.values))
        shape = (len(memory), self.heads, self.block, self.size)
        if isinstance(memory, np.ndarray):
            return keys.view(_NUMPY[dtype]).reshape(shape), values.view(_NUMPY[dtype]).reshape(shape)
        from rung.kernels.gpu.dtypes import TORCH_DTYPE

        return keys.view(TORCH_DTYPE[dtype]).view(shape), values.view(TORCH_DTYPE[dtype]).view(shape)


class Cache(Tokens):
    """Keys and values of one sequence, in blocks of a pool, and the ids of the tokens that are held.

    Writing beyond ``length`` changes nothing that counts, so a call that failed can be repeated one rung lower.
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool.context)
        self.pool = pool
        self.blocks: list[list[int]] = [[] for _ in pool.members]
        self._tables = [np.zeros(pool.per_sequence, np.int64) for _ in pool.members]

    def table(self, group: int) -> int:
        """Return the address of the block table of a group on the CPU."""
        return int(self._tables[group].ctypes.data)

    def reserve(self, count: int) -> None:
        """Take blocks for the positions before ``count``. Raises ``OutOfMemory``."""
        wanted = -(-count // self.pool.block)
        for member, blocks, table in zip(self.pool.members, self.blocks, self._tables, strict=True):
            while len(blocks) < wanted:
                block = member.take()
                if member.device == "cpu":
                    table[len(blocks)] = member.base + block * member.memory.strides[0]
                blocks.append(block)

    def release(self) -> None:
        """Give all blocks back, and forget every token."""
        self.truncate(0)
        for member, blocks in zip(self.pool.members, self.blocks, strict=True):
            while blocks:
                member.give_back(blocks.pop())

    def room(self, start: int, count: int) -> None:
        """Take the blocks of ``count`` tokens from position ``start`` on; raise ``ContextTooLong``, ``OutOfMemory``."""
        super().room(start, count)
        self.reserve(start + count)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""
        for lies, new in zip(self.pool.tensors[layer], (keys, values), strict=True):
            for block, at, first, last in self._pieces(layer, start, len(new)):
                lies[block, :, at : at + last - first].copy_(new[first:last].transpose(0, 1))

    def write_arrays(self, layer: int, start: int, keys: Floats, values: Floats) -> None:
        """Do as ``write`` with arrays, of a layer on the CPU."""
        for lies, new in zip(self.pool.arrays[layer], (keys, values), strict=True):
            for block, at, first, last in self._pieces(layer, start, len(new)):
                lies[block, :, at : at + last - first] = new[first:last].transpose(1, 0, 2)

    def _pieces(self, layer: int, start: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the block, where in it, and the first and last token of each part of some tokens that lies in a
        block."""
        blocks, first = self.blocks[self.pool.layer(layer).group], 0
        while first < count:
            number, at = divmod(start + first, self.pool.block)
            last = min(count, first + self.pool.block - at)
            yield blocks[number], at, first, last
            first = last

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [count, kv_heads, head_dim]; views where one block holds them."""
        keys, values = (self._gather(part, layer, count) for part in self.pool.tensors[layer])
        return keys, values

    def arrays(self, layer: int, count: int) -> tuple[Floats, Floats]:
        """Return the same as arrays of f32 or f16, of a layer on the CPU."""
        keys, values = (self._gather(part, layer, count) for part in self.pool.arrays[layer])
        return keys, values

    def _gather(self, part: Any, layer: int, count: int) -> Any:
        blocks = self.blocks[self.pool.layer(layer).group][: -(-count // self.pool.block)]
        if len(blocks) == 1:
            return part[blocks[0], :, :count].swapaxes(0, 1)
        return part[blocks].swapaxes(1, 2).reshape(-1, self.pool.heads, self.pool.size)[:count]


def _reserve(blocks: int, block_bytes: int, device: str) -> Any:
    """Zero bytes [blocks, bytes of a block]: an array on a CPU, else a tensor.

    One array of NumPy holds a group: it lies in huge pages where the system has them, and reading a long cache then
    misses fewer address translations. Pages that no token has come to are not there yet.
    """
    size = (blocks, block_bytes)
    if device == "cpu":
        memory: Bytes = np.zeros(math.prod(size), np.uint8)
        return memory.reshape(size)
    import torch

    return torch.zeros(size, dtype=torch.uint8, device=device)


def _tensor(memory: Any) -> Tensor:
    """Return bytes as a tensor, without a copy."""
    import torch

    return torch.from_numpy(memory) if isinstance(memory, np.ndarray) else memory
