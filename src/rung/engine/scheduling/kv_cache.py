"""The key and value cache: a pool of blocks of positions, and the blocks that a sequence has taken of it."""

from __future__ import annotations

import _thread
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import ContextTooLong, OutOfMemory
from rung.core.pages import populate
from rung.formats.codec import Floats
from rung.kernels.webgpu import device_blocks, is_webgpu
from rung.models.card import Decoder
from rung.models.decoder_memory import code_bytes, pool_blocks, row_bytes, window_blocks
from rung.ops.decode_step.parts import LayerLayout

if TYPE_CHECKING:
    from torch import Tensor

    from rung.ops.decode_step.low_rank import BoundAdapter

Bytes = npt.NDArray[np.uint8]
_NUMPY = {"f32": np.float32, "f16": np.float16}
#: Positions of a block are a multiple of it.
_LANES = 16


class Tokens:
    """The ids of the tokens whose keys and values a cache of up to ``context`` tokens has."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)

    def room(self, start: int, count: int) -> None:
        """Raise ``ContextTooLong`` when ``count`` tokens from position ``start`` on do not fit."""
        if start + count > self.context:
            raise ContextTooLong(
                f"{start + count} tokens do not fit into a context of {self.context}",
                [f"the cache has {start} tokens and {count} are new"],
                [f"rung run MODEL --context {start + count}", "a shorter prompt"],
            )

    def advance(self, ids: Sequence[int]) -> None:
        """Count tokens whose keys and values have been written at ``length`` and on."""
        self.ids.extend(ids)

    def truncate(self, length: int) -> None:
        """Forget every token from position ``length`` on."""
        del self.ids[length:]

    def shared(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens of ``ids`` the cache has."""
        return common_length(self.ids, ids)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading tokens two sequences have in common."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next((at for at in range(count) if first[at] != second[at]), count)


class _Group:
    """Blocks of the layers that see the same positions on the same device: memory, and how many use each block."""

    def __init__(self, device: str, blocks: int, layers: int, layer_bytes: int) -> None:
        self.device = device
        self.memory = _reserve(blocks, layers, layer_bytes, device)
        self.block_bytes = layers * layer_bytes
        self.uses = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    def entry(self, block: int) -> int:
        """Return the entry of a block in block tables: its address on the CPU, its number elsewhere."""
        if self.device != "cpu":
            return block
        return int(self.memory.ctypes.data) + block * self.block_bytes

    @property
    def free(self) -> int:
        """Return how many blocks nobody has."""
        return len(self._free)

    def read(self, block: int) -> Bytes:
        """Return the bytes of a block."""
        if is_webgpu(self.device):
            apart: Bytes = self.memory.read(block)
            return apart
        part = self.memory[block]
        found: Bytes = part if isinstance(part, np.ndarray) else part.cpu().numpy()
        return found

    def buffer(self, block: int) -> Bytes:
        """Return an array to write the bytes of a block to: the block itself where it lies on the CPU."""
        return self.memory[block] if self.device == "cpu" else np.empty(self.block_bytes, np.uint8)

    def store(self, block: int, buffer: Bytes) -> None:
        """Let a block have the bytes of its ``buffer``."""
        if is_webgpu(self.device):
            self.memory.write(block, buffer)
        elif self.device != "cpu":
            self.memory[block].copy_(_tensor(buffer))

    def copy(self, source: int, target: int) -> None:
        """Let a block have the bytes of another one."""
        if is_webgpu(self.device):
            self.memory.copy(source, target)
        else:
            self.memory[target] = self.memory[source]

    def take(self) -> int:
        """Return a block that nobody uses. Raises ``OutOfMemory``."""
        if not self._free:
            raise OutOfMemory("The cache of keys and values is full.", [f"all {len(self.uses)} blocks are in use"])
        block = self._free.pop()
        self.uses[block] = 1
        return block

    def share(self, block: int) -> None:
        """Count one more user of a block that is in use."""
        self.uses[block] += 1

    def give_back(self, block: int) -> None:
        """Count one user less."""
        self.uses[block] -= 1
        if not self.uses[block]:
            self._free.append(block)

    def recount(self, blocks: Iterable[int]) -> None:
        """Let these be the blocks in use, once for each time they are named."""
        uses = Counter(blocks)
        self.uses = [uses[block] for block in range(len(self.uses))]
        self._free = [block for block in reversed(range(len(self.uses))) if not self.uses[block]]


class BlockPool:
    """The memory of caches; see ``rung.ops.decode_step.parts.Pool``.

    ``block`` are the positions of a block, 0 for those of a whole sequence; ``blocks`` how many there are in each
    group, by default those of so many ``sequences`` (``rung.models.decoder_memory.pool_blocks``). ``part`` are the
    first and last of the layers that have memory here, by default all: pools of the parts of a model number their
    blocks alike, and layers count from the first of a part.
    """

    def __init__(
        self,
        shape: Decoder,
        context: int,
        dtype: str,
        devices: Sequence[str],
        block: int = 0,
        blocks: int | None = None,
        sequences: int = 1,
        part: tuple[int, int] | None = None,
    ) -> None:
        """Reserve the memory; ``devices`` has torch's name of each layer's."""
        first, last = part or (0, len(shape.layers))
        self.context, self.dtype = context, dtype
        self.block = block or -(-context // _LANES) * _LANES
        self.heads, self.size = shape.kv_heads, shape.head_dim
        whole = row_bytes(self.size, dtype)
        row, head = code_bytes(self.size, dtype), self.block * whole
        both = 2 * self.heads * head
        keys = [(layer.window, device) for layer, device in zip(shape.layers, devices, strict=True)]
        self._names = list(dict.fromkeys(keys))
        numbers = [self._names.index(key) for key in keys[first:last]]
        counts = [numbers.count(group) for group in range(len(self._names))]
        self._layers = [
            LayerLayout(group, numbers[:at].count(group) * both, self.heads * head, head, row)
            for at, group in enumerate(numbers)
        ]
        self.per_sequence = -(-context // self.block)
        self.members = []
        for (window, device), layers in zip(self._names, counts, strict=True):
            count = pool_blocks(context, self.block, window, sequences) if blocks is None else blocks
            self.members.append(_Group(device, count, layers, both))
        #: Blocks that were copied, (group, from, to), since somebody looked: other parts of the model copy them too.
        self.copies: list[tuple[int, int, int]] = []
        self.is_part = part is not None
        #: Frees a block of a group that only a prefix cache uses, and returns whether there was one.
        self.reclaim: Callable[[int], bool] = lambda group: False
        self._used = False

    @cached_property
    def windows(self) -> dict[int, int]:
        """Return the groups that keep a window of a sequence only, with its positions."""
        return {
            group: window
            for group, (window, _) in enumerate(self._names)
            if window is not None and window_blocks(window, self.block) + 1 < self.per_sequence
        }

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return len(self.members)

    @property
    def layout(self) -> tuple[object, ...]:
        """Return the layout of the keys and values of a token in a block; equal layouts can share blocks."""
        return self.block, self.dtype, self.heads, self.size, tuple(self._layers), tuple(self._names)

    def take(self, group: int) -> int:
        """Return a block of a group that nobody else uses; reclaim one if need be. Raises ``OutOfMemory``."""
        self._used = True
        while not self.members[group].free and self.reclaim(group):
            pass
        return self.members[group].take()

    def copy(self, group: int, source: int, target: int) -> None:
        """Let a block of a group have the bytes of another one."""
        self.members[group].copy(source, target)
        if self.is_part:
            self.copies.append((group, source, target))

    def recount(self, caches: Iterable[Cache]) -> None:
        """Count the uses of blocks anew: those of these caches."""
        lists = [cache.blocks for cache in caches]
        for group, member in enumerate(self.members):
            member.recount(block for blocks in lists for block in blocks[group] if block is not None)

    def populate(self, nbytes: int) -> None:
        """Have a thread touch the memory of the blocks that are taken first: ``nbytes``, of one sequence at most.

        Blocks that are read from files then wait for no fresh page. It ends when a block is taken.
        """
        share = min(1.0, nbytes / sum(self.per_sequence * member.block_bytes for member in self.members))
        parts = [
            member.memory[: math.ceil(share * self.per_sequence)] for member in self.members if member.device == "cpu"
        ]
        _thread.start_new_thread(self._populate, (parts,))

    def _populate(self, parts: Sequence[Bytes]) -> None:
        for part in parts:
            for block in part:  # one at a time: others that touch fresh pages wait for a call
                if self._used:
                    return
                populate(block.ctypes.data, block.ctypes.data + block.nbytes)

    def first_kept(self, group: int, length: int) -> int:
        """Return the number of the first block that a sequence of ``length`` tokens keeps in a group."""
        window = self.windows.get(group)
        return 0 if window is None else max(0, length // self.block - window_blocks(window, self.block))

    def first_visible(self, group: int, length: int) -> int:
        """Return the number of the first block that the next token of such a sequence sees."""
        window = self.windows.get(group)
        return 0 if window is None else max(0, length + 1 - window) // self.block

    def layer(self, index: int) -> LayerLayout:
        """Return where a layer lies."""
        return self._layers[index]

    def buffer(self, index: int) -> Any:
        """Return the buffer of a layer, see ``rung.ops.decode_step.parts.Pool``."""
        lies = self._layers[index]
        return self.members[lies.group].memory.buffers[lies.offset // (2 * lies.values)]

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

    @cached_property
    def scales(self) -> list[tuple[Tensor, Tensor]]:
        """Scales of keys and values in q8_0 of each layer on a device of torch, [blocks, kv_heads, block, units]."""
        return [self._views(index, _tensor(self.members[lies.group].memory), "scales")
                for index, lies in enumerate(self._layers)]  # fmt: skip

    def _views(self, index: int, memory: Any, dtype: str) -> tuple[Any, Any]:
        lies = self._layers[index]
        keys, values = (memory[:, at : at + lies.values] for at in (lies.offset, lies.offset + lies.values))
        shape = (len(memory), self.heads, self.block, self.size)
        if self.dtype == "q8_0":
            from rung.kernels.gpu.decoders import cache_parts

            both = (cache_parts(each.view(*shape[:2], -1), self.block, self.size) for each in (keys, values))
            first, second = (parts[dtype == "scales"] for parts in both)
            return first, second
        if isinstance(memory, np.ndarray):
            return keys.view(_NUMPY[dtype]).reshape(shape), values.view(_NUMPY[dtype]).reshape(shape)
        from rung.kernels.gpu.dtypes import TORCH_DTYPE

        return keys.view(TORCH_DTYPE[dtype]).view(shape), values.view(TORCH_DTYPE[dtype]).view(shape)


class Cache(Tokens):
    """Keys and values of one sequence, in blocks of a pool, and the ids of its tokens.

    Writing beyond ``length`` changes nothing that counts, so a call that failed can be repeated one rung lower. Blocks
    that no token after ``length`` sees are given back before others are taken: None stands for them.
    """

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool.context)
        self.pool = pool
        self.blocks: list[list[int | None]] = [[] for _ in pool.members]
        #: What changes the weights that its keys and values are computed with.
        self.adapter: BoundAdapter | None = None
        #: Whole blocks that a prefix cache knows of, and the lengths at which it gets the windows too.
        self.kept, self.checkpoints = 0, frozenset[int]()
        self._tables = [np.zeros(pool.per_sequence, np.int64) for _ in pool.members]

    def table(self, group: int) -> int:
        """Return the address of the block table of a group."""
        return int(self._tables[group].ctypes.data)

    def reserve(self, count: int) -> None:
        """Take blocks for the positions before ``count``. Raises ``OutOfMemory``."""
        self.slide()
        for group in range(self.pool.groups):
            self._take(group, -(-count // self.pool.block))

    def admit(self, count: int) -> None:
        """Take the blocks that a sequence of ``count`` tokens keeps: all of them, or a window. Raises
        ``OutOfMemory``."""
        for group in range(self.pool.groups):
            needed = -(-count // self.pool.block)
            if (window := self.pool.windows.get(group)) is not None:
                kept = window_blocks(window, self.pool.block) + 1
                needed = min(needed, self.pool.first_kept(group, self.length) + kept)
            self._take(group, needed)

    def _take(self, group: int, needed: int) -> None:
        while len(self.blocks[group]) < needed:
            self._append(group, self.pool.take(group))

    def slide(self) -> None:
        """Give back the blocks that no token after ``length`` sees."""
        for group in self.pool.windows:
            blocks, end = self.blocks[group], self.pool.first_kept(group, self.length)
            first = end
            while first and blocks[first - 1] is not None:
                first -= 1
            for number in range(first, end):
                self._drop(group, number)

    def _drop(self, group: int, number: int) -> None:
        block, self.blocks[group][number] = self.blocks[group][number], None
        if block is not None:
            self.pool.members[group].give_back(block)

    def attach(self, blocks: Mapping[int, int], ids: Sequence[int]) -> None:
        """Append blocks, by their group, that hold the keys and values of ``ids``; the caller has counted this use."""
        for group in range(self.pool.groups):
            self._append(group, blocks.get(group))
        self.advance(ids)

    def _append(self, group: int, block: int | None) -> None:
        member, blocks = self.pool.members[group], self.blocks[group]
        if block is not None:
            self._tables[group][len(blocks)] = member.entry(block)
        blocks.append(block)

    def truncate(self, length: int) -> None:
        """Forget every token from position ``length`` on, or every token where a window before ``length`` is gone."""
        for group in self.pool.windows:
            blocks, first = self.blocks[group], self.pool.first_visible(group, length)
            if None in blocks[first : -(-length // self.pool.block)]:
                length = 0
        super().truncate(length)
        for group in self.pool.windows:
            if None in self.blocks[group] and not length:
                self._give_back(group)

    def release(self) -> None:
        """Give all blocks back, and forget every token."""
        super().truncate(0)
        for group in range(self.pool.groups):
            self._give_back(group)

    def _give_back(self, group: int) -> None:
        while self.blocks[group]:
            block = self.blocks[group].pop()
            if block is not None:
                self.pool.members[group].give_back(block)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""
        there, new = [*self.pool.tensors[layer]], [keys, values]
        if self.pool.dtype == "q8_0":
            from rung.kernels.gpu.decoders import quantized_parts

            there += self.pool.scales[layer]
            (keys, first_scales), (values, second_scales) = (quantized_parts(each) for each in new)
            new = [keys, values, first_scales, second_scales]
        for lies, numbers in zip(there, new, strict=True):
            for block, at, first, last in self._pieces(layer, start, len(numbers)):
                lies[block, :, at : at + last - first].copy_(numbers[first:last].transpose(0, 1))

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
            last, block = min(count, first + self.pool.block - at), blocks[number]
            assert block is not None, "the positions were given back"
            yield block, at, first, last
            first = last

    def read(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [end - first, kv_heads, head_dim], of q8_0 in float32; views where one block holds
        floats."""
        keys, values = (self._gather(part, layer, first, end) for part in self.pool.tensors[layer])
        if self.pool.dtype == "q8_0":
            from rung.kernels.gpu.decoders import dequantized

            scales = (self._gather(part, layer, first, end) for part in self.pool.scales[layer])
            keys, values = (dequantized(*both) for both in zip((keys, values), scales, strict=True))
        return keys, values

    def arrays(self, layer: int, first: int, end: int) -> tuple[Floats, Floats]:
        """Return the same as arrays of f32 or f16, of a layer on the CPU."""
        keys, values = (self._gather(part, layer, first, end) for part in self.pool.arrays[layer])
        return keys, values

    def _gather(self, part: Any, layer: int, first: int, end: int) -> Any:
        skipped = first // self.pool.block
        blocks = self.blocks[self.pool.layer(layer).group][skipped : -(-end // self.pool.block)]
        assert None not in blocks, "the positions were given back"
        first, end = first - skipped * self.pool.block, end - skipped * self.pool.block
        if len(blocks) == 1:
            return part[blocks[0], :, first:end].swapaxes(0, 1)
        return part[blocks].swapaxes(1, 2).reshape(-1, self.pool.heads, part.shape[-1])[first:end]


def _reserve(blocks: int, layers: int, layer_bytes: int, device: str) -> Any:
    """Zero bytes [blocks, bytes of a block]: an array on a CPU, a tensor, or a buffer for each layer.

    One array of NumPy holds a group: it lies in huge pages where the system has them, and reading a long cache then
    misses fewer address translations. Pages that no token has come to are not there yet.
    """
    size = (blocks, layers * layer_bytes)
    if device == "cpu":
        memory: Bytes = np.zeros(math.prod(size), np.uint8)
        return memory.reshape(size)
    if is_webgpu(device):
        return device_blocks(device, blocks, layers, layer_bytes)
    import torch

    return torch.zeros(size, dtype=torch.uint8, device=device)


def _tensor(memory: Any) -> Tensor:
    """Return bytes as a tensor, without a copy."""
    import torch

    return torch.from_numpy(memory) if isinstance(memory, np.ndarray) else memory
