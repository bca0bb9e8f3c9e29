"""Dense decoders by what tells them from Llama: biases, norms and the shape of their feed-forward parts.

Names are those of the modules of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models import architectures
from rung.models.architectures.family import Architecture
from rung.models.card import Decoder
from rung.models.networks.describing import Description, Parts, width, windows
from rung.models.networks.text.experts import decoder_shape, gated
from rung.models.networks.values import Shape
from rung.models.roles import shape_of
from rung.models.settings import Settings

_BEFORE = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "mlp_norm"))
_AFTER = (("post_attention_layernorm", "attn_post_norm"), ("post_feedforward_layernorm", "mlp_post_norm"))


@dataclass(frozen=True)
class Style:
    """How a dense decoder is built.

    ``norms`` are those of a layer with their roles, ``norm_bias`` says whether they have biases. A bias is the key of
    a flag in the configuration, or empty for none; absent flags mean what ``defaults`` of the description say.
    ``qk_norms`` names the norms of queries and keys, which are as wide as a head, or with ``qk_whole`` as all heads.
    ``wide`` names the matrices of the feed-forward part: gated with its three usual names, ``gate_up_proj`` fused, or
    two plain ones. Every ``full_every``-th layer sees all tokens, the others a window; 0: all see all.
    """

    norms: tuple[tuple[str, str], ...] = _BEFORE
    norm_bias: bool = False
    bias: str = ""
    output_bias: str = ""
    output: str = "o_proj"
    qk_norms: tuple[str, str] = ("", "")
    qk_whole: bool = False
    wide: tuple[str, ...] = ()
    wide_bias: str = ""
    last_norm: str = "model.norm"
    head_bias: bool = False
    full_every: int = 0


def attention(at: Parts, config: Settings, shape: Shape, style: Style) -> None:
    """Queries, keys, values and the output, with their biases and norms."""
    bias, output_bias = _flag(config, style.bias), _flag(config, style.output_bias)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, role, outer in (("q_proj", "q", q), ("k_proj", "k", kv), ("v_proj", "v", kv)):
        at.linear(name, shape.hidden, outer, bias=bias, role=role)
    at.linear(style.output, q, shape.hidden, bias=output_bias, role="o")
    if style.qk_norms[0]:
        at.norm(style.qk_norms[0], q if style.qk_whole else shape.head_dim, bias=False, role="q_norm")
        at.norm(style.qk_norms[1], kv if style.qk_whole else shape.head_dim, bias=False, role="k_norm")


def outside(parts: Parts, config: Settings, shape: Shape, style: Style) -> None:
    """Embedding, last norm, and the head where it is not the embedding."""
    parts.table("model.embed_tokens", shape.vocabulary, shape.hidden)
    parts.norm(style.last_norm, shape.hidden, bias=style.norm_bias)
    if not config.flag("tie_word_embeddings", False):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=style.head_bias, role="head")


def _flag(config: Settings, key: str) -> bool:
    return bool(key) and config.flag(key, False)


def _feed_forward(mlp: Parts, config: Settings, shape: Shape, style: Style) -> None:
    hidden, wide, bias = shape.hidden, shape.feed_forward, _flag(config, style.wide_bias)
    if not style.wide:
        gated(mlp, hidden, wide)
    elif style.wide[0] == "gate_up_proj":
        mlp.linear("gate_up_proj", hidden, 2 * wide, bias=bias, role="gate_up")
        mlp.linear("down_proj", wide, hidden, bias=bias, role="down")
    else:
        mlp.linear(style.wide[0], hidden, wide, bias=bias, role="up")
        mlp.linear(style.wide[1], wide, hidden, bias=bias, role="down")


def _described(style: Style) -> Callable[[Settings, Parts], Shape]:
    def describe(config: Settings, parts: Parts) -> Shape:
        shape = decoder_shape(config)
        every = style.full_every
        if every:
            shape = replace(shape, windows=windows(config, shape.layers, lambda index: (index + 1) % every != 0))
        outside(parts, config, shape, style)
        for block in parts.blocks("model.layers", shape.layers):
            for name, role in style.norms:
                block.norm(name, shape.hidden, bias=style.norm_bias, role=role)
            attention(block / "self_attn", config, shape, style)
            _feed_forward(block / "mlp", config, shape, style)
        return shape

    return describe


def _cohere(style: Style) -> Callable[[Settings, Parts], Shape]:
    """Command R: one norm a layer; its larger models have norms of queries and keys for each head."""
    plain = _described(style)

    def describe(config: Settings, parts: Parts) -> Shape:
        shape = plain(config, parts)
        if config.flag("use_qk_norm", False):
            for block in parts.blocks("model.layers", shape.layers):
                block.tensor("self_attn.q_norm.weight", "q_norm", shape.heads, shape.head_dim)
                block.tensor("self_attn.k_norm.weight", "k_norm", shape.kv_heads, shape.head_dim)
        return shape

    return describe


def _apertus(config: Settings, parts: Parts) -> Shape:
    """Its activation has two parameters and two stored constants."""
    names = (("attention_layernorm", "attn_norm"), ("feedforward_layernorm", "mlp_norm"))
    style = Style(norms=names, bias="attention_bias", qk_norms=("q_norm", "k_norm"), wide=("up_proj", "down_proj"))
    shape = _described(style)(config, parts)
    for block in parts.blocks("model.layers", shape.layers):
        for name in ("alpha_p", "alpha_n"):
            block.tensor(f"mlp.act_fn.{name}", "table", 1)
        for name in ("beta", "eps"):
            block.tensor(f"mlp.act_fn.{name}", "table")
    return shape


def _stablelm(config: Settings, parts: Parts) -> Shape:
    if config.flag("qk_layernorm", False):
        raise UnknownArchitecture(f"{config.where} asks for norms of single heads, whose tensors rung does not know")
    parallel = config.flag("use_parallel_residual", False)
    style = Style(norms=_BEFORE[:1] if parallel else _BEFORE, norm_bias=True, bias="use_qkv_bias")
    return _described(style)(config, parts)


def _falcon(config: Settings, parts: Parts) -> Shape:
    """One matrix for queries, keys and values; the large models have two norms before attention and feed-forward."""
    base = Settings({"intermediate_size": 4 * width(config, "hidden_size"), **config.values}, config.where)
    new, bias = config.flag("new_decoder_architecture", False), config.flag("bias", False)
    shape = decoder_shape(base)
    one = config.flag("multi_query", True) and not new
    shape = replace(shape, kv_heads=1 if one else width(config, "num_kv_heads", shape.heads))
    shape = replace(shape, feed_forward=width(base, "ffn_hidden_size", 4 * shape.hidden))
    parts.table("transformer.word_embeddings", shape.vocabulary, shape.hidden)
    parts.norm("transformer.ln_f", shape.hidden)
    if not config.flag("tie_word_embeddings", True):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")
    fused = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    for block in parts.blocks("transformer.h", shape.layers):
        block.linear("self_attention.query_key_value", shape.hidden, fused, bias=bias, role="qkv")
        block.linear("self_attention.dense", shape.heads * shape.head_dim, shape.hidden, bias=bias, role="o")
        block.linear("mlp.dense_h_to_4h", shape.hidden, shape.feed_forward, bias=bias, role="up")
        block.linear("mlp.dense_4h_to_h", shape.feed_forward, shape.hidden, bias=bias, role="down")
        for name in ("ln_attn", "ln_mlp") if new else ("input_layernorm",):
            block.norm(name, shape.hidden, role="attn_norm")
    return shape


_GLM = Style(bias="attention_bias", wide=("gate_up_proj",))
_GLM4 = replace(
    _GLM, norms=(*_BEFORE, ("post_self_attn_layernorm", "attn_post_norm"), ("post_mlp_layernorm", "mlp_post_norm"))
)
_OLMO = Style(
    norms=_AFTER, bias="attention_bias", output_bias="attention_bias", qk_norms=("q_norm", "k_norm"), qk_whole=True
)
_ONE_NORM = Style(norms=_BEFORE[:1], bias="attention_bias", output_bias="attention_bias")
_PLAIN_WIDE = Style(
    bias="attention_bias", output_bias="attention_bias", wide=("up_proj", "down_proj"), wide_bias="mlp_bias"
)
_PHI = Style(
    norms=_BEFORE[:1],
    norm_bias=True,
    bias="attention_bias",
    output_bias="attention_bias",
    output="dense",
    wide=("fc1", "fc2"),
    wide_bias="attention_bias",
    last_norm="model.final_layernorm",
    head_bias=True,
)
_STARCODER = Style(
    norm_bias=True, bias="use_bias", output_bias="use_bias", wide=("c_fc", "c_proj"), wide_bias="use_bias"
)
_LLAMA = Style(bias="attention_bias", output_bias="attention_bias")
_UNTIED, _TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
_SLIDING = {"sliding_window": 4096}
_STYLES: dict[str, tuple[Style, Mapping[str, Any]]] = {
    "granite": (_LLAMA, _UNTIED),
    "smollm3": (_LLAMA, _TIED),
    "internlm3": (_LLAMA, _UNTIED),
    "ministral3": (Style(), _UNTIED),
    "ernie4_5": (Style(bias="use_bias", output_bias="use_bias"), _TIED),
    "hunyuan_v1_dense": (replace(_LLAMA, qk_norms=("query_layernorm", "key_layernorm")), _UNTIED),
    "olmo2": (_OLMO, _UNTIED),
    "olmo3": (replace(_OLMO, full_every=4), _UNTIED | _SLIDING),
    "exaone4": (Style(norms=_AFTER, qk_norms=("q_norm", "k_norm"), full_every=4), _UNTIED | _SLIDING),
    "glm": (_GLM, _UNTIED | {"attention_bias": True, "head_dim": 128}),
    "glm4": (_GLM4, _UNTIED | {"attention_bias": True, "head_dim": 128}),
    "arcee": (_PLAIN_WIDE, _UNTIED),
    "nemotron": (replace(_PLAIN_WIDE, norm_bias=True), _UNTIED),
    "starcoder2": (_STARCODER, _TIED | {"use_bias": True}),
    "phi": (_PHI, _UNTIED | {"attention_bias": True}),
}
DESCRIPTIONS = (
    *(Description(kind, "decoder", _described(style), defaults) for kind, (style, defaults) in _STYLES.items()),
    Description("cohere", "decoder", _cohere(_ONE_NORM), _TIED),
    Description("cohere2", "decoder", _cohere(replace(_ONE_NORM, full_every=4)), _TIED | _SLIDING),
    Description("apertus", "decoder", _apertus, _UNTIED),
    Description("stablelm", "decoder", _stablelm, _UNTIED),
    Description("falcon", "decoder", _falcon, _TIED | {"max_position_embeddings": 2048}),
)


def check_measures(config: Settings) -> None:
    """Raises ``BadFile`` for a configuration without what every published one has: a guess would be another model."""
    for key in ("hidden_size", "num_hidden_layers"):
        if key not in config:
            raise BadFile(f"{config.where} has no {key}", ["so nothing says how large the model is"])


def decoder_of(model: Architecture, top: Settings, config: Settings) -> Decoder:
    """The decoder of a configuration: whether it has biases and a head of its own is what its files will say."""
    check_measures(config)
    biases = [role for role in model.names(config).values() if role.endswith("_bias")]
    return replace(
        model.from_config(config),
        tied_head=top.flag("tie_word_embeddings", model.tied),
        attention_bias="q_bias" in biases,
    )


def describe(model: Architecture, config: Settings, decoder: Decoder, parts: Parts, prefix: str = "model.") -> None:
    """Names every tensor of the decoder; ``prefix`` is what stands before ``layers``."""
    parts.tensor(f"{prefix}embed_tokens.weight", "embed", *shape_of("embed", decoder))
    names = model.names(config).items()
    for block in parts.blocks(f"{prefix}layers", len(decoder.layers)):
        for name, role in names:
            block.tensor(name, role, *shape_of(role, decoder))
    parts.tensor(f"{prefix}norm.weight", "norm", *shape_of("norm", decoder))
    if not decoder.tied_head:
        parts.tensor("lm_head.weight", "head", *shape_of("head", decoder))


def model_types() -> tuple[str, ...]:
    """The model types described here."""
    return (*architectures.MODEL_TYPES, "gemma3")
