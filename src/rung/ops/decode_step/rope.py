"""Rotary position embedding: tables of a few positions, and their application in place; and the rotation of heads that
are stored in 4 or 5 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats, half
from rung.formats.search import CACHE_SHIFTS, codes_of, inverse, symmetric
from rung.models.card import Rope

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Frequencies:
    """The frequencies that one kind of layer uses in a context of known length.

    ``inverse`` [dims / 2] f32; ``magnitude`` multiplies cos and sin.
    """

    inverse: Floats
    magnitude: float
    dims: int
    interleaved: bool

    @classmethod
    def choose(cls, rope: Rope, context: int) -> Frequencies:
        """The long frequencies (longrope) when the context is above the original one, else the plain ones."""
        long = bool(rope.long_inverse_frequencies) and context > rope.original_context
        return cls(
            np.array(rope.long_inverse_frequencies if long else rope.inverse_frequencies, np.float32),
            rope.long_magnitude if long else rope.magnitude,
            rope.dims,
            rope.interleaved,
        )

    def table(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return cos and sin [positions, dims / 2] f32."""
        angles = np.asarray(positions, np.float32)[:, None] * self.inverse
        magnitude = np.float32(self.magnitude)
        return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    """Rotates the leading dimensions of every head of x [T, H, D] in place; cos and sin are [T, dims / 2]."""
    half = cos.shape[1]
    if interleaved:
        pairs = x[..., : 2 * half].unflatten(-1, (half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = first * cos - second * sin
    second.mul_(cos).add_(first * sin)
    first.copy_(turned)


def rotate_array(x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> None:
    """Do the same to an array."""
    half = cos.shape[1]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = first * cos - second * sin
    second[...] = second * cos + first * sin
    first[...] = turned


def spread_evenly(x: Floats) -> Floats:
    """Return x [..., D] times the Hadamard matrix over its norm, in parts of the largest power of two that divides D.

    It is its own inverse.
    """
    part = x.shape[-1] & -x.shape[-1]
    signs = np.ones((1, 1), np.float32)
    while len(signs) < part:
        signs = np.block([[signs, signs], [signs, -signs]])
    turned: Floats = (x.reshape(-1, part) @ (signs / np.sqrt(np.float32(part)))).reshape(x.shape)
    return turned


def in_nibbles(x: Floats) -> Floats:
    """Return rotated keys or values [..., D] as a cache in q4_0 holds them: f32 of codes and float16 steps of 32."""
    blocks = np.ascontiguousarray(x.reshape(-1, 32).T)
    with np.errstate(divide="ignore"):
        scale, factor = half(symmetric(blocks, 8, CACHE_SHIFTS)[0])
    codes = codes_of(blocks, factor, -8, 7, np.empty_like(blocks))
    found: Floats = (codes * scale.astype(np.float32)).T.reshape(x.shape)
    return found


def in_five_bits(x: Floats) -> Floats:
    """Return rotated keys or values [..., D] as a cache in q5_1 holds them: f32 of codes, and float16 steps and minima
    of 32."""
    blocks = x.reshape(-1, 32)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    ends = low.clip(-65504, 65504), high / 31 - low / 31
    base, scale = (each.astype(np.float16).astype(np.float32) for each in ends)
    with np.errstate(divide="ignore"):
        codes = np.clip(np.rint((blocks - base) * inverse(scale)), 0, 31)
    found: Floats = (codes * scale + base).reshape(x.shape)
    return found


#: How caches hold what is rotated by ``spread_evenly`` first.
SPREAD = {"q4_0": in_nibbles, "q5_1": in_five_bits}
