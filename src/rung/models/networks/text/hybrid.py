"""Hybrids: layers that attend among layers with a state of fixed size. Names as in transformers 5.

A layer with a state keeps as many numbers as attention keeps for some number of tokens; that number stands in its
place among the windows of ``Shape``, so caches come out right at any length above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.describing import Description, width
from rung.models.networks.parts import Parts
from rung.models.networks.text.experts import decoder_shape, gated, stacked
from rung.models.networks.text.sparse import with_experts
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_MOST_KERNEL = 64


def _kinds(config: Settings, layers: int, attends: Callable[[int], bool]) -> list[bool]:
    """Which layers attend: as ``layer_types`` or ``full_attn_idxs`` say, else ``attends(index)``."""
    kinds, listed = config.raw("layer_types"), config.raw("full_attn_idxs")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise config.bad("layer_types", kinds, f"a list of {layers}")
        return [kind == "full_attention" for kind in kinds]
    if listed is not None:
        if not isinstance(listed, list):
            raise config.bad("full_attn_idxs", listed, "a list of layers")
        return [index in listed for index in range(layers)]
    return [attends(index) for index in range(layers)]


def _with_states(shape: Shape, attends: list[bool], state: int) -> Shape:
    """The shape whose other layers keep ``state`` numbers each."""
    tokens = math.ceil(state / (2 * shape.kv_heads * shape.head_dim))
    return replace(shape, windows=tuple(None if whole else tokens for whole in attends))


# ---- Qwen3-Next and Qwen3.5: gated delta networks


def _qwen_linear(at: Parts, config: Settings, hidden: int, split: bool) -> int:
    """A layer of linear attention; returns the numbers that it keeps. ``split``: one matrix for each input."""
    key, value = width(config, "linear_key_head_dim"), width(config, "linear_value_head_dim")
    keys, values = width(config, "linear_num_key_heads"), width(config, "linear_num_value_heads")
    kernel = config.integer("linear_conv_kernel_dim", most=_MOST_KERNEL)
    mixed, out = 2 * keys * key + values * value, values * value
    at.tensor("dt_bias", "bias", values)
    at.tensor("A_log", "table", values)
    at.tensor("conv1d.weight", "conv", mixed, 1, kernel)
    if split:
        at.linear("in_proj_qkv", hidden, mixed, bias=False, role="qkv")
        at.linear("in_proj_z", hidden, out, bias=False)
        at.linear("in_proj_b", hidden, values, bias=False)
        at.linear("in_proj_a", hidden, values, bias=False)
    else:
        at.linear("in_proj_qkvz", hidden, mixed + out, bias=False)
        at.linear("in_proj_ba", hidden, 2 * values, bias=False)
    at.norm("norm", value, bias=False)
    at.linear("out_proj", out, hidden, bias=False)
    return values * key * value + mixed * kernel


def _qwen_attention(at: Parts, shape: Shape) -> None:
    """Queries come with a gate as wide as they are."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    at.linear("q_proj", shape.hidden, 2 * q, bias=False, role="q")
    at.linear("k_proj", shape.hidden, kv, bias=False, role="k")
    at.linear("v_proj", shape.hidden, kv, bias=False, role="v")
    at.linear("o_proj", q, shape.hidden, bias=False, role="o")
    at.norm("q_norm", shape.head_dim, bias=False, role="q_norm")
    at.norm("k_norm", shape.head_dim, bias=False, role="k_norm")


def _qwen(config: Settings, parts: Parts, *, sparse: bool, split: bool) -> Shape:
    keys = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    base = config if "intermediate_size" in config else _named(config, "shared_expert_intermediate_size")
    shape = decoder_shape(base)
    shape = with_experts(config, shape, *keys) if sparse else shape
    every = config.integer("full_attention_interval", 4, most=MOST_LAYERS)
    attends = _kinds(config, shape.layers, lambda index: (index + 1) % every == 0)
    parts.table("model.embed_tokens", shape.vocabulary, shape.hidden)
    parts.norm("model.norm", shape.hidden, bias=False)
    if not config.flag("tie_word_embeddings", False):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")
    state = 0
    for whole, block in zip(attends, parts.blocks("model.layers", shape.layers), strict=True):
        block.norm("input_layernorm", shape.hidden, bias=False, role="attn_norm")
        block.norm("post_attention_layernorm", shape.hidden, bias=False, role="mlp_norm")
        if whole:
            _qwen_attention(block / "self_attn", shape)
        else:
            state = _qwen_linear(block / "linear_attn", config, shape.hidden, split)
        mlp = block / "mlp"
        if not sparse:
            gated(mlp, shape.hidden, shape.feed_forward)
            continue
        stacked(mlp, shape)
        gated(mlp / "shared_expert", shape.hidden, width(config, "shared_expert_intermediate_size"), "shared_")
        mlp.linear("shared_expert_gate", shape.hidden, 1, bias=False, role="shared_router")
    return _with_states(shape, attends, state)


def _named(config: Settings, key: str) -> Settings:
    """The configuration with the value of ``key`` as the width of a dense layer, which it has none of."""
    return Settings({**config.values, "intermediate_size": config.raw(key)}, config.where)


def _qwen3_next(config: Settings, parts: Parts) -> Shape:
    return _qwen(config, parts, sparse=True, split=False)


def _qwen3_5(config: Settings, parts: Parts) -> Shape:
    return _qwen(config, parts, sparse=False, split=True)


def _qwen3_5_moe(config: Settings, parts: Parts) -> Shape:
    return _qwen(config, parts, sparse=True, split=True)


# ---- LFM2: short convolutions


def _lfm_wide(config: Settings) -> int:
    """The width of its feed-forward part: two thirds of what the configuration says, rounded up."""
    wide = width(config, "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return wide
    multiple = config.integer("block_multiple_of", 256)
    wide = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * wide / 3))
    return multiple * math.ceil(wide / multiple)


def _lfm_layer(block: Parts, config: Settings, shape: Shape, whole: bool) -> int:
    """Norms and either attention or a convolution, whose state is returned."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    kernel, bias = config.integer("conv_L_cache", most=_MOST_KERNEL), config.flag("conv_bias", False)
    block.norm("operator_norm", hidden, bias=False, role="attn_norm")
    block.norm("ffn_norm", hidden, bias=False, role="mlp_norm")
    if not whole:
        at = block / "conv"
        at.tensor("conv.weight", "conv", hidden, 1, kernel)
        if bias:
            at.tensor("conv.bias", "bias", hidden)
        at.linear("in_proj", hidden, 3 * hidden, bias=bias)
        at.linear("out_proj", hidden, hidden, bias=bias)
        return hidden * kernel
    at = block / "self_attn"
    at.linear("q_proj", hidden, q, bias=False, role="q")
    at.linear("k_proj", hidden, kv, bias=False, role="k")
    at.linear("v_proj", hidden, kv, bias=False, role="v")
    at.linear("out_proj", q, hidden, bias=False, role="o")
    at.norm("q_layernorm", shape.head_dim, bias=False, role="q_norm")
    at.norm("k_layernorm", shape.head_dim, bias=False, role="k_norm")
    return 0


def _lfm_dense(mlp: Parts, hidden: int, wide: int) -> None:
    mlp.linear("w1", hidden, wide, bias=False, role="gate")
    mlp.linear("w3", hidden, wide, bias=False, role="up")
    mlp.linear("w2", wide, hidden, bias=False, role="down")


def _lfm(config: Settings, parts: Parts, *, sparse: bool) -> Shape:
    shape = decoder_shape(config)
    dense = shape.layers
    if sparse:
        shape = with_experts(config, shape, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
        dense = config.integer("num_dense_layers", least=0, most=MOST_LAYERS)
    else:
        shape = replace(shape, feed_forward=_lfm_wide(config))
    attends = _kinds(config, shape.layers, lambda index: True)
    parts.table("model.embed_tokens", shape.vocabulary, shape.hidden)
    parts.norm("model.embedding_norm", shape.hidden, bias=False)
    if not config.flag("tie_word_embeddings", True):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")
    state = 0
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        state = max(state, _lfm_layer(block, config, shape, attends[index]))
        mlp = block / "feed_forward"
        if index < dense:
            _lfm_dense(mlp, shape.hidden, shape.feed_forward)
            continue
        stacked(mlp, shape)
        if config.flag("use_expert_bias", True):
            mlp.tensor("expert_bias", "router_bias", shape.experts, format="f32")
    return _with_states(shape, attends, state)


def _lfm2(config: Settings, parts: Parts) -> Shape:
    return _lfm(config, parts, sparse=False)


def _lfm2_moe(config: Settings, parts: Parts) -> Shape:
    return _lfm(config, parts, sparse=True)


_LINEAR = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
_QWEN = _LINEAR | {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "tie_word_embeddings": False}
_SHARED = {"shared_expert_intermediate_size": 512, "moe_intermediate_size": 512}
_LFM = {"tie_word_embeddings": True, "conv_L_cache": 3}
DESCRIPTIONS = (
    Description("qwen3_next", "decoder", _qwen3_next, _QWEN | _SHARED | {"num_experts_per_tok": 10, "head_dim": 256}),
    Description("qwen3_5_text", "decoder", _qwen3_5, _QWEN | {"head_dim": 256}),
    Description(
        "qwen3_5_moe_text", "decoder", _qwen3_5_moe, _QWEN | _SHARED | {"num_experts_per_tok": 8, "head_dim": 256}
    ),
    Description("lfm2", "decoder", _lfm2, _LFM),
    Description("lfm2_moe", "decoder", _lfm2_moe, _LFM),
)
