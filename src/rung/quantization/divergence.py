"""Measure how far a changed model is from the model itself: KL, perplexity and first choices on windows of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rung.core.types import EMPTY
from rung.core.value import FrozenDict, Value
from rung.models.card import ModelCard
from rung.models.reader import Reader
from rung.quantization.network import EXACT, Arithmetic, Network, Override, logits

#: Tokens whose logits are computed at once.
_TOKENS = 128


@dataclass(frozen=True)
class Measured(Value):
    """``divergence``: KL in nats a token; ``perplexity`` of both; ``flips``: the share of tokens at which another one
    would be chosen; over so many ``tokens``. ``kinds``: the KL of each kind of text, where there are several."""

    divergence: float
    perplexity: float
    perplexity_before: float
    flips: float
    tokens: int
    kinds: FrozenDict[float] = EMPTY


class Reference:
    """Hold the answers of a model to windows [B, L] of token ids, in f32."""

    def __init__(self, card: ModelCard, windows: Tensor) -> None:
        self.card, self.windows = card, windows
        self._states, self._head = _states(card, windows, lambda role: None)

    def computed(self, arithmetic: Arithmetic) -> Measured:
        """Return the divergence of the model itself where a program computes in another arithmetic."""
        states, _ = _states(self.card, self.windows, lambda role: None, arithmetic, head=self._head)
        return self._measured(self.card, states, self._head, ())

    def compare(self, card: ModelCard, override: Override = lambda role: None, kinds: Sequence[str] = ()) -> Measured:
        """Return the divergence of a model: that of a card, with other weights where ``override`` has some.

        ``kinds`` names the kind of text of each window.
        """
        return self._measured(card, *_states(card, self.windows, override), kinds)

    def _measured(self, card: ModelCard, states: Tensor, head: Tensor, kinds: Sequence[str]) -> Measured:
        sums = torch.stack([self._sums(card, number, states[number], head) for number in range(len(states))])
        tokens = self.windows.shape[1] - 1
        of_kind = {
            kind: float(sums[[at for at, each in enumerate(kinds) if each == kind], 0].mean()) / tokens
            for kind in dict.fromkeys(kinds)
        }
        divergence, after, before, flips = (float(each) / tokens for each in sums.mean(dim=0))
        found = Measured(max(divergence, 0.0), math.exp(after), math.exp(before), flips, tokens * len(sums))
        return replace(found, kinds=FrozenDict(of_kind)) if len(of_kind) > 1 else found

    def _sums(self, card: ModelCard, number: int, states: Tensor, head: Tensor) -> Tensor:
        """Return sums over a window: KL, surprise of the changed model and of the model itself, and flips."""
        sums, targets = torch.zeros(4, dtype=torch.float64), self.windows[number, 1:]
        for first in range(0, len(targets), _TOKENS):
            part = slice(first, min(first + _TOKENS, len(targets)))
            p, q = (
                logits(card.decoder, each[part], matrix).log_softmax(dim=1)
                for each, matrix in ((self._states[number], self._head), (states, head))
            )
            rows, following = torch.arange(len(p)), targets[part]
            sums[0] += (p.exp() * (p - q)).sum(dtype=torch.float64)
            sums[1] -= q[rows, following].sum(dtype=torch.float64)
            sums[2] -= p[rows, following].sum(dtype=torch.float64)
            sums[3] += (p.argmax(dim=1) != q.argmax(dim=1)).sum()
        return sums


@torch.no_grad()
def _states(
    card: ModelCard,
    windows: Tensor,
    override: Override,
    arithmetic: Arithmetic = EXACT,
    head: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the states [B, L, hidden] as they enter the head, and its matrix, which may be there already."""
    with Reader(card) as reader:
        network = Network(card, reader, windows.shape[1], override, arithmetic)
        hidden = network.embed(windows)
        for layer in network.layers():
            hidden = torch.cat([network.forward(layer, part) for part in hidden.split(2)])
        return network.normed(hidden), network.weight(network.head_role) if head is None else head
