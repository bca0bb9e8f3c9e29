"""The lean decoder: reads prompts in chunks, then one token after the other, and keeps the cache's count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rung.core.errors import UsageError
from rung.engine.cache import Cache
from rung.models.footprint import CHUNK
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.ref import RUNG as REF


class Step(Protocol):
    """A rung of ``rung.ops.decode_step``."""

    def prepare(self, network: Network, cache: Any, *, threads: int) -> Any:
        """Binds the network to a cache."""

    def apply(self, state: Any, token: int, position: int) -> Tensor:
        """Logits [vocabulary] after one token."""


class Decoder:
    """A network with a cache of ``context`` tokens, and the rung that computes single tokens.

    A call that fails leaves the cache's count as it was, so it can be repeated, also with another ``step``.
    """

    def __init__(self, network: Network, context: int, cache_dtype: str, step: Step = REF, threads: int = 1) -> None:
        self.network = network
        self.cache = Cache(network.shape, context, cache_dtype, network.devices)
        self._threads = threads
        self.use(step)

    def use(self, step: Step) -> None:
        """Computes single tokens with that rung from now on."""
        self._step = step
        self._state = step.prepare(self.network, self.cache, threads=self._threads)

    def step(self, token: int) -> Tensor:
        """Logits [vocabulary] f32 after one more token. Raises ``ContextTooLong`` or ``UsageError``."""
        self._check([token])
        logits = self._step.apply(self._state, token, self.cache.length)
        self.cache.advance([token])
        return logits

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int]) -> Tensor:
        """Logits [vocabulary] f32 after the last of ``ids``, which are read after what the cache holds.

        Raises, before anything is computed, ``ContextTooLong`` or (no ids, an unknown id) ``UsageError``.
        """
        hidden = torch.empty(0)
        for _, hidden in self._chunks(ids):  # noqa: B007  the last chunk's is used
            pass
        return self.network.logits(hidden[-1:])[0]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits [positions, vocabulary] f32 after each of ``ids``; raises as ``prefill`` does."""
        out = torch.empty(len(ids), self.network.shape.vocabulary)
        for first, hidden in self._chunks(ids):
            out[first : first + hidden.shape[0]] = self.network.logits(hidden)
        return out

    def _chunks(self, ids: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """For each chunk the index of its first id and the hidden states [T, hidden] after the last layer."""
        self._check(ids)
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            hidden = self.network.layers(torch.tensor(chunk, dtype=torch.int64), self.cache, self.cache.length)
            self.cache.advance(chunk)
            yield first, hidden

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise UsageError("there is no token to compute", ["the prompt is empty"], ["a prompt with text in it"])
        vocabulary = self.network.shape.vocabulary
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise UsageError(
                f"token ids must lie in 0 to {vocabulary - 1}, found {min(ids)} to {max(ids)}",
                [f"the model's vocabulary has {vocabulary} tokens"],
            )
        self.cache.room(self.cache.length, len(ids))
