"""A decoder in torch: from token ids to logits, a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rung.formats.codec import Floats
from rung.ops.decode_step.block import Block, Linear
from rung.ops.decode_step.glue import Glue, TokenSpan
from rung.ops.decode_step.parts import Adapter, Cache
from rung.ops.decode_step.weights import Weights


class Network:
    """Embedding, blocks and head of one model in torch. It keeps no state: what has been read is in a cache.

    Everything is f32 beside the weights and the cache. ``glue`` is what lies between the products; ``threads`` is
    what torch computes with on a CPU from now on.
    """

    def __init__(self, weights: Weights, glue: Glue, threads: int) -> None:
        torch.set_num_threads(threads)
        self.weights, self.glue = weights, glue
        self.shape = weights.shape
        self.blocks = tuple(Block(weights.shape, layer) for layer in weights.layers)
        self.head = Linear(weights.head, weights.layers[-1].device)
        self.norm = torch.from_numpy(weights.norm).to(weights.layers[-1].device)

    def embed(self, ids: Tensor) -> Tensor:
        """The scaled rows [T, hidden] f32 of ids [T] int64."""
        hidden = self.weights.look_up(ids)
        return hidden if self.shape.embedding_scale == 1.0 else hidden * self.shape.embedding_scale

    @torch.inference_mode()
    def read(self, ids: Sequence[int], cache: Cache, start: int, adapter: Adapter | None) -> Tensor:
        """Return hidden states [T, hidden] after the last layer, of ids at ``start`` and on; write the cache there."""
        hidden = self.embed(torch.tensor(ids, dtype=torch.int64))
        tables = [frequencies.table(range(start, start + len(ids))) for frequencies in self.weights.frequencies]
        for block in self.blocks:
            layer = block.weights
            hidden = hidden.to(layer.device)
            cos, sin = (torch.from_numpy(table).to(layer.device) for table in tables[layer.rope])
            interleaved = self.weights.frequencies[layer.rope].interleaved
            span = TokenSpan(layer.index, start, cos, sin, interleaved, block.q_norm, block.k_norm)
            block.forward(hidden, cache, span, self.glue, adapter)
        return hidden

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Floats:
        """Return hidden states [T, hidden] after the final norm."""
        states: Floats = self.glue.add_and_norm(hidden, None, None, self.norm).to("cpu", torch.float32).numpy()
        return states

    @torch.inference_mode()
    def logits(self, hidden: Tensor, adapter: Adapter | None) -> Floats:
        """Return logits [T, vocabulary] of hidden states [T, hidden]."""
        logits = self.head(self.glue.add_and_norm(hidden, None, None, self.norm), adapter)
        softcap = self.shape.logit_softcap
        if softcap is not None:
            logits = logits.div_(softcap).tanh_().mul_(softcap)
        found: Floats = logits.to("cpu", torch.float32).numpy()
        return found
