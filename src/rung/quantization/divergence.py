"""Measure how far a changed model is from the model itself: KL, perplexity and first choices on windows of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rung.core.value import Value
from rung.models.card import ModelCard
from rung.models.reader import Reader
from rung.quantization.network import Network, Override, logits

#: Tokens whose logits are computed at once.
_TOKENS = 128


@dataclass(frozen=True)
class Measured(Value):
    """``divergence``: KL in nats a token; ``perplexity`` of both; ``flips``: the share of tokens at which another one
    would be chosen; over so many ``tokens``."""

    divergence: float
    perplexity: float
    perplexity_before: float
    flips: float
    tokens: int


class Reference:
    """Hold the answers of a model to windows [B, L] of token ids, in f32."""

    def __init__(self, card: ModelCard, windows: Tensor) -> None:
        self.card, self.windows = card, windows
        self._states, self._head = _states(card, windows, lambda role: None)

    def compare(self, card: ModelCard, override: Override = lambda role: None) -> Measured:
        """Return the divergence of a model: that of a card, with other weights where ``override`` has some."""
        states, head = _states(card, self.windows, override)
        sums, count = torch.zeros(4, dtype=torch.float64), 0
        targets = self.windows[:, 1:].reshape(-1)
        flat = [each[:, :-1].reshape(-1, each.shape[-1]) for each in (self._states, states)]
        for first in range(0, len(targets), _TOKENS):
            part = slice(first, first + _TOKENS)
            p, q = (
                logits(card.decoder, each[part], matrix).log_softmax(dim=1)
                for each, matrix in zip(flat, (self._head, head), strict=True)
            )
            rows, wanted = torch.arange(len(p)), targets[part]
            sums[0] += (p.exp() * (p - q)).sum(dtype=torch.float64)
            sums[1] -= q[rows, wanted].sum(dtype=torch.float64)
            sums[2] -= p[rows, wanted].sum(dtype=torch.float64)
            sums[3] += (p.argmax(dim=1) != q.argmax(dim=1)).sum()
            count += len(p)
        divergence, after, before, flips = (float(each) / count for each in sums)
        return Measured(max(divergence, 0.0), math.exp(after), math.exp(before), flips, count)


@torch.no_grad()
def _states(card: ModelCard, windows: Tensor, override: Override) -> tuple[Tensor, Tensor]:
    """Return the states [B, L, hidden] after the final norm, and the matrix of the head."""
    with Reader(card) as reader:
        network = Network(card, reader, windows.shape[1], override)
        hidden = network.embed(windows)
        for layer in network.layers():
            hidden = torch.cat([network.forward(layer, part) for part in hidden.split(2)])
        return network.normed(hidden), network.weight(network.head_role)
