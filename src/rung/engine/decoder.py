"""The lean decoder: the eight architectures of ``rung.models.arch`` from one description, made of bound ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rung.core.errors import UsageError
from rung.engine.cache import Cache
from rung.engine.glue import Glue, TorchGlue
from rung.engine.layer import Block
from rung.engine.parts import Parts
from rung.engine.rope import Frequencies
from rung.models.card import Decoder as Shape
from rung.models.footprint import CHUNK


class Decoder:
    """A decoder bound to its parts; it keeps no state: what it has read is in a ``Cache``.

    Everything is f32 beside the weights and the cache. ``context`` decides between the frequencies of longrope.
    """

    def __init__(self, shape: Shape, parts: Parts, context: int, glue: Glue | None = None) -> None:
        self.shape = shape
        self.context = context
        self.glue = glue or TorchGlue(shape)
        self.frequencies = tuple(Frequencies.choose(rope, context) for rope in shape.ropes)
        self.look_up = parts.look_up()
        self.blocks = tuple(Block.bind(shape, layer, parts, self.glue) for layer in range(len(shape.layers)))
        self.devices = tuple(parts.device(layer) for layer in range(len(shape.layers)))
        self.norm = parts.vector("norm") + shape.norm_offset
        self.head = parts.linear("head")

    def cache(self, dtype: str) -> Cache:
        """An empty cache of this decoder's context."""
        return Cache(self.shape, self.context, dtype, self.devices)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], cache: Cache) -> Tensor:
        """Reads ``ids`` after what the cache holds, and advances it; the logits [vocabulary] after the last.

        Raises, before anything is computed, ``ContextTooLong`` or (no ids, an unknown id) ``UsageError``.
        """
        last = torch.empty(0)
        for _, hidden in self._chunks(ids, cache):
            last = hidden[-1:]
        return self._logits(last)[0]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], cache: Cache | None = None) -> Tensor:
        """Logits [positions, vocabulary] f32 after each of ``ids``; the cache (an empty one by default) advances."""
        out = torch.empty(len(ids), self.shape.vocabulary)
        for first, hidden in self._chunks(ids, self.cache("f32") if cache is None else cache):
            out[first : first + hidden.shape[0]] = self._logits(hidden)
        return out

    def _chunks(self, ids: Sequence[int], cache: Cache) -> Iterator[tuple[int, Tensor]]:
        """For each chunk the index of its first id and its last layer's hidden states [T, hidden]."""
        self._check(ids)
        cache.room(cache.length, len(ids))
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            hidden = self._layers(torch.tensor(chunk, dtype=torch.int64), cache, cache.length)
            cache.advance(chunk)
            yield first, hidden

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise UsageError("there is no token to compute", ["the prompt is empty"], ["a prompt with text in it"])
        if min(ids) < 0 or max(ids) >= self.shape.vocabulary:
            raise UsageError(
                f"token ids must lie in 0 to {self.shape.vocabulary - 1}, found {min(ids)} to {max(ids)}",
                [f"the model's vocabulary has {self.shape.vocabulary} tokens"],
            )

    def _layers(self, ids: Tensor, cache: Cache, start: int) -> Tensor:
        hidden = self.look_up(ids)
        if self.shape.embedding_scale != 1.0:
            hidden = hidden * self.shape.embedding_scale
        tables = [frequencies.table(start, len(ids)) for frequencies in self.frequencies]
        for block, device in zip(self.blocks, self.devices, strict=True):
            hidden = hidden.to(device)
            cos, sin = (table.to(device) for table in tables[block.rope])
            block.forward(hidden, cache, start, cos, sin, self.frequencies[block.rope].interleaved)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits [T, vocabulary] on the CPU."""
        logits = self.head(self.glue.norm(hidden, self.norm)).float()
        cap = self.shape.logit_softcap
        if cap is not None:
            logits = (logits / cap).tanh_().mul_(cap)
        return logits.cpu()
