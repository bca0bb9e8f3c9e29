"""Hold what a decoder is made of: the shapes of its bound parts, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rung.formats.codec import Floats

if TYPE_CHECKING:
    from torch import Tensor


class Linear(Protocol):
    """A bound linear."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] f32 -> [T, out] f32."""

    @property
    def without_torch(self) -> bool:
        """Return whether its rungs multiply arrays, so that ``multiply`` may be called."""

    def multiply(self, x: Floats) -> Floats:
        """Return x [T, in], whose rows may lie apart, times the weight: [T, out], without torch."""


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


class Rows(NamedTuple):
    """Where keys and values of a layer lie in the memory of the CPU: addresses of both, the bytes between heads and
    between tokens (those of a head follow each other), and their dtype."""

    keys: int
    values: int
    head_stride: int
    row_stride: int
    dtype: str


class Cache(Protocol):
    """Keys and values of every layer: [kv_heads, context, head_dim] of f32, f16 or bf16."""

    context: int

    def rows(self, layer: int) -> Rows:
        """Where they lie, of a layer on the CPU."""

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Views [count, kv_heads, head_dim] of the first ``count`` positions."""

    def arrays(self, layer: int, count: int) -> tuple[Floats, Floats]:
        """Return the same views as arrays of f32 or f16, which may be written to; of a layer on the CPU."""


class Reader(Protocol):
    """Reads many tokens of a prompt at once."""

    def read(self, ids: Sequence[int], cache: Cache, start: int) -> Any:
        """Return hidden states of ids at ``start`` and on, one row a token, for ``logits``; write the cache there."""

    def logits(self, hidden: Any) -> Floats:
        """Return logits [T, vocabulary] of T rows of hidden states, which may be overwritten."""


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

    def attention(self, layer: int) -> Attend:
        """The attention of a layer, for one query and for many."""

    def device(self, layer: int) -> str:
        """torch's name of where that layer computes."""
