"""Hold what a decoder is made of: the shapes of its bound parts, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rung.formats import Encoded
from rung.formats.codec import Floats

if TYPE_CHECKING:
    from torch import Tensor


class Room:
    """Memory of one result, kept for the next one.

    A prompt of 460 tokens of a 0.3B touched 300 MB of fresh pages, a fifth of its time (``benchmarks/prompts.py``).
    """

    def __init__(self) -> None:
        self._kept = np.empty(0, np.float32)

    def array(self, rows: int, columns: int) -> Floats:
        """Return [rows, columns] f32 of any values; what was returned before is overwritten."""
        if self._kept.size < rows * columns:
            self._kept = np.empty(0, np.float32)  # what is too small goes before what is larger comes
            self._kept = np.empty(rows * columns, np.float32)
        return self._kept[: rows * columns].reshape(rows, columns)


class Linear(Protocol):
    """A bound linear."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] f32 -> [T, out] f32."""

    @property
    def without_torch(self) -> bool:
        """Return whether its rungs multiply arrays, so that ``multiply`` may be called."""

    def multiply(self, x: Floats, room: Room | None = None) -> Floats:
        """Return x [T, in], whose rows may lie apart, times the weight, without torch: [T, out], in memory of ``room``
        where the rung can write there."""

    def encoded(self) -> Encoded:
        """Return the weight [out, in]."""


class Embedding(Protocol):
    """A bound embedding."""

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [T] int64 -> the rows [T, hidden] f32."""

    def rows(self, ids: Sequence[int]) -> Floats:
        """Return the rows [T, hidden] of these tokens, without torch."""


class Attend(Protocol):
    """A bound attention rung; see ``rung.ops.attention``."""

    def __call__(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """[T, H, D] from q [T, H, D] and keys, values [S, KV, D]."""

    def attend(
        self,
        q: Floats,
        keys: Floats,
        values: Floats,
        *,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Floats:
        """Return the same with arrays, where its rungs need no torch."""


class LayerLayout(NamedTuple):
    """How a layer lies in a cache: the group whose block tables name its blocks, and bytes in a block: before the
    layer, from its keys to its values, between its heads, and between positions (in blocks of 32 of values alone:
    ``rung.kernels.cpu.decode.attend_q8_0``)."""

    group: int
    offset: int
    values: int
    head: int
    row: int


class Pool(Protocol):
    """The memory of caches: blocks of ``block`` positions, f32, f16, q8_0, q5_1 or q4_0, which sequences of up to
    ``context`` tokens take.

    Layers that see the same positions on the same device are a group, and have a block table of a sequence in common.
    """

    context: int
    block: int
    dtype: str

    @property
    def groups(self) -> int:
        """Return the number of groups."""

    def layer(self, index: int) -> LayerLayout:
        """Return where a layer lies."""

    @property
    def tensors(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Return keys and values of each layer on a device of torch, [blocks, kv_heads, positions, head_dim]."""

    def buffer(self, index: int) -> Any:
        """Return the buffer of a layer whose device holds one for each layer (``rung.kernels.webgpu.matrix``)."""


class Cache(Protocol):
    """The keys and values of one sequence, which has a block for every position that is read or written.

    Layers with a window have none for positions that no token to come sees (``first_visible``).
    """

    def table(self, group: int) -> int:
        """Return the address of the block table of a group: int64 addresses of blocks on a CPU, their numbers in the
        memory of another device."""

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""

    def read(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [end - first, kv_heads, head_dim] of the positions ``first`` to ``end``."""

    def write_arrays(self, layer: int, start: int, keys: Floats, values: Floats) -> None:
        """Do as ``write`` with arrays, of a layer on the CPU."""

    def arrays(self, layer: int, first: int, end: int) -> tuple[Floats, Floats]:
        """Return the same as ``read`` as arrays of f32 or f16, of a layer on the CPU."""


def first_visible(start: int, window: int | None) -> int:
    """Return where reading begins for queries at ``start`` and on: a multiple of 16, at which sums begin."""
    return 0 if window is None else max(0, start + 1 - window) // 16 * 16


class Adapter(Protocol):
    """Changes of weights that rows of a sequence are multiplied with; see ``low_rank.BoundAdapter``."""

    number: int
    addresses: npt.NDArray[np.int64]
    sums: int

    def added(self, role: str, y: Tensor, x: Tensor) -> Tensor:
        """Return y [T, out], which may be overwritten, with the change of a weight for x [T, in]."""

    def add(self, role: str, x: Floats, y: Floats) -> None:
        """Add the change of a weight for x [T, in] to y [T, out] in place."""

    def arrays(self, role: str) -> tuple[Floats, Floats, Floats | None] | None:
        """Return down [rank, in], up [out, rank] and the factor [out] of a DoRA, or None where nothing changes; for
        devices that torch does not drive."""

    def tensors(self, role: str) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Return the same on a device of torch that is no CPU."""


class SequenceRows(NamedTuple):
    """Tokens of one sequence that a step reads: rows of a batch.

    They stand at ``start`` and on in ``cache``; logits of the last ``logits`` are outputs. Weights are multiplied with
    what ``adapter`` changes. ``states`` [n, hidden] f32 is where hidden states after the final norm, of the last n
    tokens, are written; None for nowhere.
    """

    tokens: Sequence[int]
    start: int
    cache: Cache
    logits: int = 1
    adapter: Adapter | None = None
    states: Floats | None = None


def read_each(network: Any, batch: Sequence[SequenceRows]) -> Floats:
    """Return the requested logits of a batch from a network, which reads a sequence at a time."""
    found = []
    for each in batch:
        hidden = network.read(each.tokens, each.cache, each.start, each.adapter)
        if each.states is not None:
            each.states[:] = network.normed(hidden[-len(each.states) :])
        if each.logits:
            found.append(network.logits(hidden[-each.logits :], each.adapter))
    return np.concatenate(found) if found else np.empty((0, network.weights.shape.vocabulary), np.float32)


class Parts(Protocol):
    """Where a decoder gets its bound parts from, a role (``layers.3.q``) at a time, in the order of use."""

    def holds(self, role: str) -> bool:
        """Return whether the model has that tensor."""

    def linear(self, role: str) -> Linear:
        """x [T, in] -> [T, out], bound; ``head`` gives the embedding's matrix when the head is tied."""

    def look_up(self) -> Embedding:
        """The rows of ``embed``."""

    def vector(self, role: str) -> Floats:
        """A norm's weight or a bias: f32, one dimension."""

    def attention(self, layer: int) -> Attend | None:
        """The attention of a layer, for one query and for many; None for a cache that only whole steps read."""

    def device(self, layer: int) -> str:
        """torch's name of where that layer computes."""
