"""Measure what is planned: the tensors of a network and the measures that its memory and time depend on."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from rung.core.types import FLOAT_BYTES
from rung.core.value import Value
from rung.models.card import Decoder, Encoder, ModelCard, Tensor
from rung.models.cards.encoder import EncoderCard
from rung.models.cards.folder import NetworkCard
from rung.models.decoder_memory import activation_bytes, cache_bytes
from rung.models.networks.values import GENERATES, OTHER, TABLES, Component, Shape, shape_of_decoder

#: Tokens that a denoiser or image encoder sees where its shape does not say: an image of 1024 x 1024 in patches of 16.
_IMAGE_TOKENS = 4096


@dataclass(frozen=True)
class Subject(Value):
    """One network to plan for.

    ``decoder`` is set for those that ``rung run`` builds, ``encoder`` for those that make embeddings of texts; the plan
    then counts what the engine does. ``tied``: the head is the embedding. ``path`` is what a command would name.
    ``traced``: bytes of activations that a trace of the module found; 0 where there was none. ``borrowed``: the network
    is transformers' own, with layers of ``rung.nn``.
    """

    name: str
    path: str
    kind: str
    role: str
    tensors: tuple[Tensor, ...]
    shape: Shape
    decoder: Decoder | None
    tied: bool
    traced: int = 0
    borrowed: bool = False
    encoder: Encoder | None = None

    @classmethod
    def of_card(cls, card: ModelCard | EncoderCard | NetworkCard) -> Subject:
        """The language model of a card."""
        if isinstance(card, EncoderCard):
            found = cls.of_component(card.component, card.kind, card.path)
            return replace(found, name=card.name, encoder=card.encoder)
        if isinstance(card, NetworkCard):
            found = cls.of_component(card.component, "folder", card.path)
            return replace(found, name=card.name, borrowed=True)
        shape = shape_of_decoder(card.decoder)
        return cls(
            card.name, card.path, card.kind, "decoder", card.tensors, shape, card.decoder, card.decoder.tied_head
        )

    @classmethod
    def of_component(cls, component: Component, kind: str, path: str) -> Subject:
        """One component of an outline; what its files hold beside the model is left out."""
        tensors = tuple(tensor for tensor in component.tensors if tensor.role != OTHER)
        heads = any(tensor.role == "head" for tensor in tensors)
        tied = component.role in GENERATES and not heads
        return cls(component.name, path, kind, component.role, tensors, component.shape, component.decoder, tied)

    @functools.cached_property
    def keeps(self) -> bool:
        """Return whether its files hold weights in formats that are kept unless another one is asked for.

        An encoder keeps them: its embeddings are compared with those that others made of the same files.
        """
        return self.kind == "gguf" or self.encoder is not None or any(tensor.source for tensor in self.tensors)

    @property
    def layers(self) -> int:
        """Layers that can lie on different devices."""
        return max(self.shape.layers + self.shape.encoder_layers, 1)

    @property
    def generates(self) -> bool:
        """Return whether it writes text token by token."""
        return self.role in GENERATES

    @property
    def keeps_stored(self) -> bool:
        """Return whether layers keep a weight as it is stored beside what is packed of it: those of programs that rung
        does not own, which may train or save it."""
        return self.borrowed and (self.kind == "module" or not self.generates)

    @functools.cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @functools.cached_property
    def kept(self) -> int:
        """Number of weights that stay in f32 where others have 16 bits."""
        return sum(math.prod(t.shape) for t in self.tensors if self.shape.kept in t.name.split("."))

    @property
    def experts_share(self) -> float:
        """The share of the experts that one token visits."""
        return self.shape.experts_per_token / self.shape.experts if self.shape.experts else 1.0

    def cache_bytes(self, context: int, dtype: str, layers: int, batch: int = 1, block: int = 0) -> int:
        """Bytes of keys and values of that many layers for ``batch`` sequences of ``context`` tokens.

        ``block``: positions of a block of the cache of rung's own decoders, 0 for a sequence in one.
        """
        if self.decoder is not None:
            return cache_bytes(self.decoder, context, dtype, layers, block, batch)
        if not self.generates:
            return 0
        return batch * self.shape.cached(context) * FLOAT_BYTES[dtype] * layers // self.layers

    @property
    def halves(self) -> bool:
        """Return whether it is computed in 16 bits where weights are: parts of pipelines. rung's own decoders take
        f32."""
        return self.kind == "pipeline" or self.role in ("denoiser", "autoencoder")

    def activation_bytes(self, context: int, batch: int = 1, converted: bool = True, width: int = 4) -> int:
        """The most bytes of activations alive at once; for other networks than decoders an estimate of the same kind.

        ``converted``: see ``rung.models.decoder_memory``. Prompts of a batch are read one after the other. ``width``:
        bytes of a number in what ``halves``; a trace of that was of 16 bits.
        """
        if self.decoder is not None:
            return (
                activation_bytes(self.decoder, context, converted=converted) + 8 * (batch - 1) * self.shape.vocabulary
            )
        shape, width = self.shape, width if self.halves else 4
        if self.traced:
            return self.traced * width // 2 if self.halves else self.traced
        if shape.alive:
            return (shape.alive * width - 2 * shape.in_f32 * (width - 2)) * shape.inputs * batch
        tokens = min(context, 512) if self.generates else shape.context or shape.encoder_context or _IMAGE_TOKENS
        tokens = min(tokens, _IMAGE_TOKENS)
        wide = max(shape.feed_forward, shape.experts_per_token * shape.expert_feed_forward, 4 * shape.hidden)
        attention = 4 * shape.heads * shape.head_dim or 4 * shape.hidden
        scores = 3 * shape.heads * tokens * tokens if shape.biased else 0
        layer = max(tokens * max(3 * wide, attention), scores)
        return width * batch * (2 * tokens * shape.hidden + layer + 2 * shape.vocabulary * self.generates)


def is_table(role: str) -> bool:
    """Return whether one row of the tensor is looked up for a token, instead of multiplying it."""
    return role.rpartition(".")[2] in TABLES
