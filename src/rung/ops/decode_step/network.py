"""A decoder bound to its parts: from token ids to logits, a chunk of tokens at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.models.card import Decoder as Shape
from rung.ops.decode_step.block import Block
from rung.ops.decode_step.glue import Glue, Place, TorchGlue
from rung.ops.decode_step.parts import Cache, Parts
from rung.ops.decode_step.rope import Frequencies


class Network:
    """Embedding, blocks and head of one model. It keeps no state: what has been read is in a cache.

    Everything is f32 beside the weights and the cache. ``context`` decides between the frequencies of longrope.
    ``glue`` can be replaced; torch's runs everywhere.
    """

    def __init__(self, shape: Shape, parts: Parts, context: int) -> None:
        """Asks ``parts`` for every part, in the order of use."""
        self.shape = shape
        self.glue: Glue = TorchGlue(shape)
        self.frequencies = tuple(Frequencies.choose(rope, context) for rope in shape.ropes)
        layers = range(len(shape.layers))
        self.look_up = parts.look_up()
        self.blocks = tuple(Block.bind(shape, layer, parts) for layer in layers)
        self.devices = tuple(parts.device(layer) for layer in layers)
        self.norm = parts.vector("norm") + shape.norm_offset
        self.head = parts.linear("head")

    def embed(self, ids: Tensor) -> Tensor:
        """The scaled rows [T, hidden] f32 of ids [T] int64."""
        hidden = self.look_up(ids)
        return hidden if self.shape.embedding_scale == 1.0 else hidden * self.shape.embedding_scale

    def layers(self, ids: Tensor, cache: Cache, start: int) -> Tensor:
        """Hidden states [T, hidden] after the last layer, of ids [T] at ``start`` and on; writes the cache there."""
        hidden = self.embed(ids)
        tables = [frequencies.table(start, len(ids)) for frequencies in self.frequencies]
        for block, device in zip(self.blocks, self.devices, strict=True):
            hidden = hidden.to(device)
            cos, sin = (table.to(device) for table in tables[block.rope])
            interleaved = self.frequencies[block.rope].interleaved
            place = Place(block.index, start, cos, sin, interleaved, block.q_norm, block.k_norm)
            block.forward(hidden, cache, place, self.glue)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [T, vocabulary] f32 on the CPU of hidden states [T, hidden]."""
        logits = self.head(self.glue.add_and_norm(hidden, None, None, self.norm))
        softcap = self.shape.logit_softcap
        if softcap is not None:
            logits = logits.div_(softcap).tanh_().mul_(softcap)
        return logits.to("cpu", torch.float32)
