"""Hold what a model is, from headers alone: its architecture, tensors, tokenizer and defaults. No weights are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rung.core.types import EMPTY
from rung.core.value import FrozenDict, Value
from rung.models.checkpoints.values import OWN, StoredWeight


@dataclass(frozen=True)
class Rope(Value):
    """Rotary position embedding of one kind of layer.

    ``dims`` is the number of leading dimensions of a head that rotate. ``interleaved`` pairs dimensions
    (0,1),(2,3) ... as GGUF files of Llama store them; otherwise (0,d/2),(1,d/2+1) ...
    ``inverse_frequencies`` has dims/2 values with every scaling (linear, llama3, yarn, longrope) already in
    them; ``magnitude`` multiplies cos and sin. ``long_inverse_frequencies`` (longrope) replace the others
    once the context that the plan holds is above ``original_context``.
    """

    dims: int
    interleaved: bool
    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0
    long_inverse_frequencies: tuple[float, ...] = ()
    long_magnitude: float = 1.0
    original_context: int = 0


@dataclass(frozen=True)
class Layer(Value):
    """Hold what differs between layers: the attention window in tokens (None: all) and which rope it uses."""

    window: int | None
    rope: int


@dataclass(frozen=True)
class Decoder(Value):
    """The shape of a decoder-only language model: enough to build it, whatever file it came from.

    ``norm_offset`` is added to every norm weight (1.0 for Gemma folders, 0.0 for GGUF files, whose converter
    has added it). ``attention_scale`` multiplies q.k. ``embedding_scale`` multiplies embedded tokens.
    ``activation`` is silu or gelu_tanh. ``post_norms``: norms after attention and feed-forward (Gemma 2, 3).
    """

    model_type: str
    layers: tuple[Layer, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context: int
    norm_epsilon: float
    norm_offset: float
    activation: str
    attention_scale: float
    ropes: tuple[Rope, ...]
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    qk_norm: bool = False
    post_norms: bool = False
    attention_bias: bool = False
    tied_head: bool = False


@dataclass(frozen=True)
class Encoder(Value):
    """The shape of an encoder of the kind of BERT: enough to build it, whatever file it came from.

    Positions are absolute and learned, norms are LayerNorms behind each sum, attention has no mask. ``activation`` is
    gelu (with erf) or gelu_tanh. ``types`` counts token types; a text alone has type 0. ``pooling`` is mean, cls or
    last; ``normalize`` says whether embeddings have length 1. ``most_tokens`` is where sentence-transformers cuts a
    text.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    context: int
    types: int
    norm_epsilon: float
    activation: str
    pooling: str = "mean"
    normalize: bool = False
    most_tokens: int = 0

    @property
    def head_dim(self) -> int:
        """Return the width of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Piece(Value):
    """A stored tensor that is one ``part`` of a weight; ``dtype`` as safetensors names it. Places as in ``Tensor``."""

    part: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class Source(Value):
    """How a quantized weight lies in its files: a method of ``rung.models.checkpoints``, and its parts."""

    method: str
    held: StoredWeight
    pieces: tuple[Piece, ...]

    @property
    def mapped(self) -> bool:
        """Return whether the parts are held as they lie in the files, and so cost no memory beside what is packed of
        them."""
        return self.method == OWN


@dataclass(frozen=True)
class Tensor(Value):
    """One stored tensor. ``role`` is rung's name for it; ``name`` the file's; ``shape`` is [out, in], row major.

    Roles: ``embed``, ``norm``, ``head``, and with ``layers.N.`` before them ``attn_norm q k v qkv o q_bias
    k_bias v_bias qkv_bias o_bias q_norm k_norm attn_post_norm mlp_norm gate up gate_up down mlp_post_norm``.
    ``format`` is the printed name of a format of ``rung.formats``. ``file`` indexes ``ModelCard.files``;
    ``offset`` is the first byte in that file. With a ``source`` it is made of several stored tensors; ``format`` is
    what it is held in then, ``bytes`` its size there.
    """

    role: str
    name: str
    shape: tuple[int, ...]
    format: str
    file: int
    offset: int
    bytes: int
    source: Source | None = None


@dataclass(frozen=True)
class ModelCard(Value):
    """Hold what a model is, read from headers alone.

    ``kind`` is gguf or folder. ``defaults`` are the sampling defaults of the checkpoint (temperature, top_k,
    top_p, min_p, repeat_penalty); ``end_tokens`` the ids at which generation stops. ``tokenizer`` says where
    the tokenizer is: ``gguf`` (in the metadata), or a path of tokenizer.json or tokenizer.model.
    ``skipped`` names groups of tensors that are not used (vision), said once when running.
    """

    name: str
    kind: str
    path: str
    files: tuple[str, ...]
    decoder: Decoder
    tensors: tuple[Tensor, ...]
    tokenizer: str
    chat_template: str | None
    end_tokens: tuple[int, ...]
    bos_token: int | None
    add_bos: bool
    defaults: FrozenDict[Any] = EMPTY
    skipped: tuple[str, ...] = ()
    metadata: FrozenDict[Any] = field(default=EMPTY, compare=False)

    @property
    def context(self) -> int:
        """The most tokens that the model holds."""
        return self.decoder.context

    @property
    def tied_head(self) -> bool:
        """Return whether the head is the embedding."""
        return self.decoder.tied_head

    def tensor(self, role: str) -> Tensor:
        """The tensor of that role; raises ``KeyError``."""
        for tensor in self.tensors:
            if tensor.role == role:
                return tensor
        raise KeyError(role)

    @property
    def quantized(self) -> str:
        """The method that quantized the weights of a folder, ``rung`` too; empty for GGUF files and plain folders."""
        return next((tensor.source.method for tensor in self.tensors if tensor.source), "")

    @property
    def divergence(self) -> str:
        """``KL 0.012 to its source``, as ``rung quantize`` measured it; empty where a file says nothing of it."""
        measured = self.metadata.get("rung.quantization.measured_kl")
        known = self.kind == "gguf" and isinstance(measured, float) and 0 <= measured < math.inf
        return f"KL {measured:.2g} to its source" if known else ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        total = 0
        for tensor in self.tensors:
            count = 1
            for length in tensor.shape:
                count *= length
            total += count
        return total


@dataclass(frozen=True)
class View(Value):
    """One photograph of a scene, with the camera that took it.

    ``pose`` are the first three rows of world to camera (axes right, down, forward), row by row; ``width`` and
    ``height`` are pixels of the camera, which the picture may scale. ``lens`` is pinhole, opencv (``bend`` k1 k2 p1 p2,
    and k3 k4 if not 0) or fisheye (``bend`` k1 k2 k3 k4). ``split`` is train or test where the data set says so, else
    empty.
    """

    name: str
    image: str
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    pose: tuple[float, ...]
    lens: str = "pinhole"
    bend: tuple[float, ...] = ()
    mask: str = ""
    split: str = ""


@dataclass(frozen=True)
class SceneCard(Value):
    """Hold what a scene of photographs is, without its pictures: ``kind`` is colmap, transforms, blender or
    realitycapture.

    ``views`` are in the order of their names. ``points`` counts the points that structure from motion found; they
    are in ``points_file`` (empty for none). ``notes`` say what was chosen or left out.
    """

    kind: str
    path: str
    views: tuple[View, ...]
    points: int = 0
    points_file: str = ""
    notes: tuple[str, ...] = ()
