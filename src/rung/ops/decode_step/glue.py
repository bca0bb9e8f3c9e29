"""What lies between the ops: norms, rotation and the gated activation, in plain torch or in fused kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rung.models.card import Decoder as Shape
from rung.ops.decode_step.rope import rotate


class Glue(Protocol):
    """The small things between the ops of a layer."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm over the last dimension; a new tensor like x."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
        """Rotates x [T, H, D] in place; cos and sin are [T, dims / 2]."""

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """activation(gate) * up, both [T, feed_forward]; may overwrite them."""


class TorchGlue:
    """The glue in plain torch, on any device."""

    def __init__(self, shape: Shape) -> None:
        self._epsilon = shape.norm_epsilon
        self._gelu = shape.activation == "gelu_tanh"

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + epsilon) * weight."""
        mean = x.square().mean(dim=-1, keepdim=True)
        return (x * mean.add_(self._epsilon).rsqrt_()).mul_(weight)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
        """See ``rung.ops.decode_step.rope.rotate``."""
        rotate(x, cos, sin, interleaved)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu or gelu (its tanh form) of the gate, times up."""
        if self._gelu:
            return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)
        return torch.nn.functional.silu(gate, inplace=True).mul_(up)
