"""Muon: momentum whose update of each matrix is made orthogonal by Newton-Schulz steps, in f32.

The method is Keller Jordan's (https://kellerjordan.github.io/posts/muon/), the coefficients too.  ``torch.optim.Muon``
does the steps in bfloat16, which a CPU without bfloat16 arithmetic pays for with twice the time of the whole step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed

A, B, C = 3.4445, -4.7750, 2.0315


def orthogonal(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """``matrix`` with all singular values brought near 1 (0.7 to 1.2)."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=B, alpha=C)
        x = torch.addmm(x, update, x, beta=A)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonal updates, decoupled weight decay; for matrices only."""

    def __init__(self, weights: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(list(weights), {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update of every matrix; each process makes a part of the updates and gives them to the others."""
        for group in self.param_groups:
            weights = group["params"]
            updates = torch.zeros(sum(weight.numel() for weight in weights))
            parts = updates.split([weight.numel() for weight in weights])
            for number, (weight, part) in enumerate(zip(weights, parts, strict=True)):
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                if number % distributed.get_world_size() == distributed.get_rank():
                    part.copy_(orthogonal(weight.grad.lerp(mean, group["momentum"])).flatten())
            distributed.all_reduce(updates)
            for weight, part in zip(weights, parts, strict=True):
                scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["decay"]).add_(part.view_as(weight), alpha=-group["lr"] * scale)
