"""Hold what an outline is made of: components with their tensors and shape, and the phases in which they reside."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rung.core.value import Value
from rung.models.card import Decoder, ModelCard, Tensor

#: Ends of the roles of tensors that belong to another one's storage and are no weights: scales of quantized blocks.
SCALE = "_scale"
#: The role of what a file holds and the model does not take.
OTHER = "other"
#: The roles of look-up tables, of which one row is read for a token.
TABLES = ("embed", "layer_embed", "positions", "types")
#: Roles of components that write text, and so hold a cache and have a speed of decoding.
GENERATES = ("decoder", "encoder-decoder")


@dataclass(frozen=True)
class Shape(Value):
    """The measures of a component; 0 where it has no such thing.

    ``layers`` are those that hold a cache (of an encoder-decoder the decoder's), ``encoder_layers`` the others.
    ``feed_forward`` is the width of a dense layer, ``expert_feed_forward`` that of one expert. ``windows`` has the
    attention window in tokens of each layer (None: all tokens); empty means None everywhere. ``latent`` counts the
    numbers that a token leaves in a layer's cache under multi-head latent attention (DeepSeek: kv_lora_rank +
    qk_rope_head_dim); 0: keys and values of ``kv_heads`` heads. ``cached_numbers`` has these numbers for each layer
    where layers differ (0: the layer takes the keys and values of another). ``value_dim`` is the width of a head's
    values where it differs from ``head_dim``. ``encoder_context`` is the most tokens or positions that the encoder
    gives to cross attention (Whisper: 1500, always all of them; T5: its input). ``biased`` attention adds something
    to each score, and so keeps them. Parameters with ``kept`` in their names stay in f32 beside 16 bits.

    Of a part of a pipeline ``alive`` counts the numbers that are alive at once for one input of the usual size in 16
    bits (those ``in_f32`` in any dtype count twice), ``inputs`` how many of these go through at once, and ``made`` the
    numbers of the picture that comes of one.
    """

    layers: int
    hidden: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    feed_forward: int = 0
    vocabulary: int = 0
    context: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    windows: tuple[int | None, ...] = ()
    latent: int = 0
    cached_numbers: tuple[int, ...] = ()
    value_dim: int = 0
    encoder_layers: int = 0
    encoder_context: int = 0
    biased: bool = False
    kept: str = ""
    alive: int = 0
    in_f32: int = 0
    inputs: int = 1
    outputs: int = 0

    def cached(self, context: int, encoder_tokens: int | None = None) -> int:
        """Numbers that one sequence of ``context`` tokens keeps in all layers' caches.

        A layer with a window keeps the window. ``encoder_tokens`` (default: ``encoder_context``) are kept once
        as keys and values of cross attention. Latent attention keeps the latent, as llama.cpp and vLLM do.
        """
        plain = self.kv_heads * (self.head_dim + (self.value_dim or self.head_dim))
        each = self.cached_numbers or (self.latent or plain,) * self.layers
        windows = self.windows or (None,) * self.layers
        kept = sum(min(window or context, context) * numbers for window, numbers in zip(windows, each, strict=True))
        crossed = self.encoder_context if encoder_tokens is None else encoder_tokens
        return kept + (self.layers * crossed * plain if self.encoder_context else 0)


@dataclass(frozen=True)
class Component(Value):
    """One network of a model: ``model`` for a plain one, or a pipeline's part (text_encoder, transformer, vae).

    ``role`` is decoder, encoder, encoder-decoder, denoiser, autoencoder or vision. ``decoder`` is set for the
    architectures that ``rung run`` builds. The roles of tensors are those of ``rung.models.card.Tensor`` for these and
    their like; besides there are ``linear``, ``conv`` and ``bias`` for layers without a name of their own, ``router``,
    ``experts_gate_up``, ``experts_down`` (stacked [experts, out, in] or [experts, in, out]), ``shared_*``,
    ``positions``, ``types``, ``table``, and ``*_scale``; repeated blocks have ``layers.N.`` before them. ``other``
    is what a file holds beside the model (buffers, layers that predict further tokens) and counts nowhere. Where only a
    configuration is there, tensors have file and offset 0.
    """

    name: str
    model_type: str
    role: str
    tensors: tuple[Tensor, ...]
    shape: Shape
    decoder: Decoder | None = None

    @property
    def parameters(self) -> int:
        """Number of weights; scales of quantized blocks are none."""
        return sum(math.prod(t.shape) for t in self.tensors if t.role != OTHER and not t.role.endswith(SCALE))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.role != OTHER)

    @property
    def active_parameters(self) -> int:
        """Weights that are multiplied for one token: of experts the share that a token visits, of look-up tables none.

        An embedding counts where it serves as the head too.
        """
        last = [tensor.role.rsplit(".", 1)[-1] for tensor in self.tensors]
        tied = self.role in GENERATES and "head" not in last
        total = 0.0
        for tensor, role in zip(self.tensors, last, strict=True):
            skipped = role == OTHER or role.endswith(SCALE) or (role in TABLES and not (tied and role == "embed"))
            share = self.shape.experts_per_token / self.shape.experts if "experts" in tensor.role else 1.0
            total += 0.0 if skipped else math.prod(tensor.shape) * share
        return round(total)


@dataclass(frozen=True)
class Phase(Value):
    """Hold what must be resident together; a component that no later phase names can be dropped after its last."""

    name: str
    components: tuple[str, ...]


@dataclass(frozen=True)
class Outline(Value):
    """A model of any kind from headers alone.

    ``kind`` is gguf, folder, config, index, hub, pipeline, size for a dense model of which only the size is known, or
    module for one in memory that is to get layers of ``rung.nn``; ``path`` the place it was read from. A plain model
    has one component, ``model``, and one phase, ``run``. ``card`` is set where ``rung run`` could run it as it lies;
    ``makes`` is what a pipeline is known to make of a text: image or video. ``title`` is what its makers call a model
    that is known by name, ``gguf`` a hub repository of its GGUF files.
    """

    name: str
    kind: str
    path: str
    components: tuple[Component, ...]
    phases: tuple[Phase, ...]
    card: ModelCard | None = None
    makes: str = ""
    title: str = ""
    gguf: str = ""

    def component(self, name: str) -> Component:
        """The component of that name; raises ``KeyError``."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(name)

    @property
    def parameters(self) -> int:
        """Number of weights of all components."""
        return sum(component.parameters for component in self.components)

    @property
    def writes(self) -> bool:
        """Return whether ``rung run`` makes text with it: rung's own decoder, or transformers' network of a
        checkpoint."""
        only, *more = self.components
        borrowed = only.role == "decoder" and self.kind not in ("gguf", "module")
        return not more and self.kind != "size" and (only.decoder is not None or borrowed)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all components as stored."""
        return sum(component.weight_bytes for component in self.components)


def plain(name: str, kind: str, path: str, component: Component, card: ModelCard | None = None) -> Outline:
    """The outline of a model of one component."""
    return Outline(name, kind, path, (component,), (Phase("run", (component.name,)),), card)


def shape_of_decoder(decoder: Decoder) -> Shape:
    """The measures of a decoder that ``rung run`` builds."""
    return Shape(
        layers=len(decoder.layers),
        hidden=decoder.hidden,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        feed_forward=decoder.feed_forward,
        vocabulary=decoder.vocabulary,
        context=decoder.context,
        windows=tuple(layer.window for layer in decoder.layers),
    )
