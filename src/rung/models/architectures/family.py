"""Define what the architectures have in common: the tables of names, and how most of them read their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models import rope
from rung.models.card import Decoder, Layer, Rope
from rung.models.settings import Settings

MOST_LAYERS = 1024

#: Names inside a layer of a Hugging Face checkpoint.
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm",
    "self_attn.q_proj.weight": "q",
    "self_attn.k_proj.weight": "k",
    "self_attn.v_proj.weight": "v",
    "self_attn.o_proj.weight": "o",
    "post_attention_layernorm.weight": "mlp_norm",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.down_proj.weight": "down",
}
FUSED_NAMES = {
    "input_layernorm.weight": "attn_norm",
    "self_attn.qkv_proj.weight": "qkv",
    "self_attn.o_proj.weight": "o",
    "post_attention_layernorm.weight": "mlp_norm",
    "mlp.gate_up_proj.weight": "gate_up",
    "mlp.down_proj.weight": "down",
}
QK_NORM_NAMES = {"self_attn.q_norm.weight": "q_norm", "self_attn.k_norm.weight": "k_norm"}
POST_NORM_NAMES = {
    "post_attention_layernorm.weight": "attn_post_norm",
    "pre_feedforward_layernorm.weight": "mlp_norm",
    "post_feedforward_layernorm.weight": "mlp_post_norm",
}
ATTENTION_BIAS_NAMES = {f"self_attn.{name}_proj.bias": f"{name}_bias" for name in ("q", "k", "v")}
OUTPUT_BIAS_NAMES = {"self_attn.o_proj.bias": "o_bias"}
MLP_BIAS_NAMES = {f"mlp.{name}_proj.bias": f"{name}_bias" for name in ("gate", "up", "down")}

#: Names inside a block of a GGUF file. Any of its architectures may have q, k and v fused, and biases on them.
GGUF_NAMES = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_qkv.weight": "qkv",
    "attn_output.weight": "o",
    "attn_q.bias": "q_bias",
    "attn_k.bias": "k_bias",
    "attn_v.bias": "v_bias",
    "attn_qkv.bias": "qkv_bias",
    "ffn_norm.weight": "mlp_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
}
GGUF_QK_NORM_NAMES = {"attn_q_norm.weight": "q_norm", "attn_k_norm.weight": "k_norm"}
GGUF_POST_NORM_NAMES = {"post_attention_norm.weight": "attn_post_norm", "post_ffw_norm.weight": "mlp_post_norm"}
GGUF_BIAS_NAMES = {
    "attn_output.bias": "o_bias",
    "ffn_gate.bias": "gate_bias",
    "ffn_up.bias": "up_bias",
    "ffn_down.bias": "down_bias",
}

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


@dataclass(frozen=True)
class Factors:
    """Divisors of frequencies that a GGUF file stores as tensors; empty where it has none."""

    plain: tuple[float, ...] = ()
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


#: The tensors of ``Factors.plain``, ``short`` and ``long``.
FREQUENCY_TENSORS = {
    "rope_freqs.weight": "plain",
    "rope_factors_short.weight": "short",
    "rope_factors_long.weight": "long",
}


@dataclass(frozen=True)
class Architecture:
    """How one model type is read.

    ``names`` maps the names inside a layer of a Hugging Face checkpoint to roles, given its configuration (biases
    depend on it); ``gguf`` is the architecture of its GGUF files ("" where they go by another type's) and
    ``gguf_names`` the names inside their blocks, ``gguf_factors`` the tensors of divisors of frequencies that they may
    have. ``from_config`` and ``from_gguf`` make the decoder's shape;
    ``network`` is the stem of its class in transformers (``Llama`` of ``LlamaForCausalLM``);
    ``tied`` is what transformers takes an absent ``tie_word_embeddings`` to mean; ``ends`` and ``bos`` are the ids
    it takes absent ``eos_token_id`` and ``bos_token_id`` to mean; ``adds_bos`` says whether its sentencepiece
    tokenizer begins a text with BOS.
    """

    model_type: str
    names: Callable[[Settings], Mapping[str, str]]
    from_config: Callable[[Settings], Decoder]
    network: str = ""
    gguf: str = ""
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_factors: tuple[str, ...] = ()
    from_gguf: Callable[[Settings, Factors], Decoder] | None = None
    tied: bool = False
    ends: tuple[int, ...] = ()
    bos: int | None = None
    adds_bos: bool = False


def activation(name: str, where: str) -> str:
    """rung's name of an activation. Raises ``UnknownArchitecture``."""
    if name not in _ACTIVATIONS:
        raise UnknownArchitecture(f"{where} asks for the activation {name!r}", [f"known: {', '.join(_ACTIVATIONS)}"])
    return _ACTIVATIONS[name]


def decoder(config: Settings, model_type: str, defaults: Mapping[str, Any], **more: Any) -> Decoder:
    """The decoder of a configuration whose absent keys have the ``defaults`` of its class; ``more`` overrides.

    ``layers``, ``ropes`` and whatever else an architecture computes itself come in ``more``.
    """
    heads = config.integer("num_attention_heads", defaults["num_attention_heads"])
    hidden = config.integer("hidden_size", defaults["hidden_size"])
    kv_heads = config.integer("num_key_value_heads", defaults.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise BadFile(f"{config.where}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    width = head_dim(config, defaults)
    found: dict[str, Any] = {
        "model_type": model_type,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": width,
        "feed_forward": config.integer("intermediate_size", defaults["intermediate_size"]),
        "vocabulary": config.integer("vocab_size", defaults["vocab_size"]),
        "context": context(config, defaults),
        "norm_epsilon": config.number("rms_norm_eps", defaults.get("rms_norm_eps", 1e-6)),
        "norm_offset": 0.0,
        "attention_scale": width**-0.5,
    }
    if "activation" not in more:
        found["activation"] = activation(config.text("hidden_act", "silu"), config.where)
    return Decoder(**{**found, **more})


def head_dim(config: Settings, defaults: Mapping[str, Any]) -> int:
    """Dimensions of a head, an even number: ``head_dim``, else the class's, else hidden / heads."""
    heads = config.integer("num_attention_heads", defaults["num_attention_heads"])
    hidden = config.integer("hidden_size", defaults["hidden_size"])
    width = config.integer("head_dim", defaults.get("head_dim") or max(hidden // heads, 1))
    if width % 2:
        raise BadFile(f"{config.where}: a head has {width} dimensions, and rotary embeddings need an even number")
    return width


def context(config: Settings, defaults: Mapping[str, Any]) -> int:
    """Tokens that the model has been made for."""
    return config.integer("max_position_embeddings", defaults["max_position_embeddings"])


def layer_count(config: Settings, defaults: Mapping[str, Any]) -> int:
    """Number of layers, at most ``MOST_LAYERS``."""
    return config.integer("num_hidden_layers", defaults["num_hidden_layers"], most=MOST_LAYERS)


def window(config: Settings, value: int | None) -> int | None:
    """The sliding window in tokens, with the class's value where the key is absent; None where it is null."""
    if config.raw("sliding_window", value) is None:
        return None
    return config.integer("sliding_window", value)


def layers(config: Settings, count: int, span: int | None, sliding: Callable[[int], bool]) -> tuple[Layer, ...]:
    """The layers: ``layer_types`` where the configuration has them, else ``sliding(index)``; all with rope 0."""
    kinds = config.raw("layer_types")
    if kinds is None:
        return tuple(Layer(span if sliding(index) else None, 0) for index in range(count))
    if not isinstance(kinds, list) or len(kinds) != count:
        raise config.bad("layer_types", kinds, f"a list of {count}")
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            raise UnknownArchitecture(f"{config.where} asks for layers of the kind {str(kind)[:40]!r}")
    return tuple(Layer(span if kind == "sliding_attention" else None, 0) for kind in kinds)


def config_rope(config: Settings, defaults: Mapping[str, Any], base: float = 10000.0, partial: float = 1.0) -> Rope:
    """The rope of a configuration of either generation.

    ``rope_scaling`` with ``rope_theta`` (transformers 4) wins over ``rope_parameters`` (5), as it does there.
    """
    values = dict(config.table("rope_scaling") or config.table("rope_parameters"))
    theta = values.get("rope_theta") or config.raw("rope_theta") or base
    values["partial_rotary_factor"] = values.get("partial_rotary_factor") or config.raw(
        "partial_rotary_factor", partial
    )
    return rope_of(config, values, theta, head_dim(config, defaults), context(config, defaults))


def rope_of(config: Settings, values: Mapping[str, Any], theta: Any, width: int, length: int) -> Rope:
    """The rope with the parameters ``values``, for heads of ``width`` dimensions and ``length`` tokens."""
    found = Settings({**values, "rope_theta": theta}, f"{config.where}, rope parameters")
    kind = str(values.get("rope_type") or values.get("type") or "default")
    dims = int(width * min(found.number("partial_rotary_factor", 1.0), 1.0))
    if not 2 <= dims <= rope.MOST_DIMS or dims % 2:
        raise BadFile(f"{config.where}: {dims} dimensions of a head rotate, not an even number up to {rope.MOST_DIMS}")
    original = found.integer("original_max_position_embeddings", length, least=2)
    return rope.from_config(
        kind, rope.Scaling(values, found.number("rope_theta"), dims, length, original, config.where)
    )


def refuse_bidirectional(config: Settings) -> None:
    """Raises ``UnknownArchitecture`` for a model that is an encoder of text, which generates none."""
    if config.raw("use_bidirectional_attention"):
        raise UnknownArchitecture(
            f"{config.where} describes an encoder (bidirectional attention), which writes no text",
            code="architecture-unsupported",
        )


# ---- GGUF


def gguf_decoder(meta: Settings, factors: Factors, model_type: str, **more: Any) -> Decoder:
    """The decoder of a GGUF file; an absent key means what llama.cpp takes it to mean. ``more`` overrides.

    Vocabulary, whether q and k have norms, biases and a head of its own are known from the tensors and set later.
    """
    if meta.integer("expert_count", 0, least=0):
        raise UnknownArchitecture(
            f"{meta.where} is a mixture of experts, which rung does not build", code="architecture-unsupported"
        )
    if not meta.flag("attention.causal", True):
        raise UnknownArchitecture(
            f"{meta.where} holds an encoder (attention is not causal), which writes no text",
            code="architecture-unsupported",
        )
    heads = meta.uniform("attention.head_count")
    kv_heads = meta.uniform("attention.head_count_kv", heads)
    hidden = meta.integer("embedding_length")
    width = gguf_width(meta)
    if heads % kv_heads:
        raise BadFile(f"{meta.where}: {kv_heads} key heads do not divide {heads} heads")
    if meta.integer("attention.value_length", max(hidden // heads, 1)) != width:
        raise UnknownArchitecture(f"{meta.where}: keys and values have different lengths, which rung does not build")
    count = meta.integer("block_count", most=MOST_LAYERS)
    found: dict[str, Any] = {
        "model_type": model_type,
        "layers": (Layer(None, 0),) * count,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": width,
        "feed_forward": meta.uniform("feed_forward_length"),
        "vocabulary": 0,
        "context": meta.integer("context_length"),
        "norm_epsilon": meta.number("attention.layer_norm_rms_epsilon"),
        "norm_offset": 0.0,
        "activation": "silu",
        "attention_scale": 1.0 / math.sqrt(width),
        "ropes": (gguf_rope(meta, factors, width),) if "ropes" not in more else (),
    }
    return Decoder(**{**found, **more})


def gguf_width(meta: Settings) -> int:
    """Dimensions of a head: ``attention.key_length``, else hidden / heads."""
    hidden, heads = meta.integer("embedding_length"), meta.uniform("attention.head_count")
    return meta.integer("attention.key_length", max(hidden // heads, 1))


def gguf_rope(meta: Settings, factors: Factors, width: int, *, interleaved: bool = False, **more: Any) -> Rope:
    """The rope of a GGUF file; ``more`` overrides what the keys say (``base``, ``factor``)."""
    kind = meta.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise BadFile(f"{meta.where}: {meta.prefix}rope.scaling.type is {kind[:40]!r}, which llama.cpp does not know")
    dims = meta.integer("rope.dimension_count", width)
    if dims > min(width, rope.MOST_DIMS) or dims % 2:
        raise BadFile(f"{meta.where}: {dims} dimensions rotate of heads with {width}")
    stretch = meta.raw("rope.scaling.factor", meta.raw("rope.scale_linear", 0.0))
    factor = 1.0 if stretch == 0 or kind == "none" else Settings({"factor": stretch}, meta.where).number("factor")
    values: dict[str, Any] = {
        "base": meta.number("rope.freq_base", 10000.0),
        "interleaved": interleaved,
        "kind": kind,
        "factor": factor,
        "original": meta.integer("rope.scaling.original_context_length", meta.integer("context_length"), least=2),
        "magnitude": meta.number("rope.scaling.attn_factor", 1.0),
        "factors": factors.plain or factors.short,
        "long_factors": () if factors.plain else factors.long,
    }
    return rope.from_gguf(dims, **{**values, **more})


def gguf_windows(
    meta: Settings, count: int, span: int, every: int, ropes: tuple[int, int] = (0, 0)
) -> tuple[Layer, ...]:
    """Layers of which each ``every``-th sees everything, or as ``sliding_window_pattern`` says.

    ``ropes`` are the indices for layers that see everything and for the others.
    """
    pattern = meta.raw("attention.sliding_window_pattern")
    if pattern is None or isinstance(pattern, int):
        period = meta.integer("attention.sliding_window_pattern", every, least=0)
        sliding = [period == 0 or index % period < period - 1 for index in range(count)]
    else:
        sliding = [bool(value) for value in pattern]
        if len(sliding) != count:
            raise meta.bad("attention.sliding_window_pattern", len(sliding), f"a list of {count}")
    return tuple(Layer(span, ropes[1]) if slides else Layer(None, ropes[0]) for slides in sliding)
