"""What a decoder is made of: the shapes of its bound parts, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

#: A bound linear (x [T, in] f32 -> [T, out] f32) or embedding (ids [T] int64 -> [T, hidden] f32).
Linear = Callable[[Tensor], Tensor]


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


class Cache(Protocol):
    """Keys and values of every layer: tensors [kv_heads, context, head_dim] of f32 or f16."""

    keys: list[Tensor]
    values: list[Tensor]

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values [T, kv_heads, head_dim] at positions ``start`` and on."""

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Views [count, kv_heads, head_dim] of the first ``count`` positions."""


class Parts(Protocol):
    """Where a decoder gets its bound parts from, a role (``layers.3.q``) at a time, in the order of use."""

    def holds(self, role: str) -> bool:
        """Whether the model has that tensor."""

    def linear(self, role: str) -> Linear:
        """x [T, in] -> [T, out], bound; ``head`` gives the embedding's matrix when the head is tied."""

    def look_up(self) -> Linear:
        """ids [T] int64 -> the rows of ``embed`` [T, hidden] f32."""

    def vector(self, role: str) -> Tensor:
        """A norm's weight or a bias: f32, one dimension, on the device of its layer."""

    def attention(self, layer: int) -> Attend:
        """The attention of a layer, for one query and for many."""

    def device(self, layer: int) -> torch.device:
        """Where that layer computes."""
