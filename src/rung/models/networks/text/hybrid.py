"""Hybrids: layers that attend among layers with a state of fixed size. Names as in transformers 5.

A layer with a state keeps as many numbers as attention keeps for some number of tokens; that number stands in its
place among the windows of ``Shape``, so caches come out right at any length above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.describing import MOST_EXPERTS, Description, Parts, width
from rung.models.networks.text.dense import Style, attention, outside
from rung.models.networks.text.experts import decoder_shape, gated, stacked
from rung.models.networks.text.sparse import stacked_experts, with_experts
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
_HYBRIDS = (
    Description("qwen3_next", "decoder", _qwen3_next, _QWEN | _SHARED | {"num_experts_per_tok": 10, "head_dim": 256}),
    Description("qwen3_5_text", "decoder", _qwen3_5, _QWEN | {"head_dim": 256}),
    Description(
        "qwen3_5_moe_text", "decoder", _qwen3_5_moe, _QWEN | _SHARED | {"num_experts_per_tok": 8, "head_dim": 256}
    ),
    Description("lfm2", "decoder", _lfm2, _LFM),
    Description("lfm2_moe", "decoder", _lfm2_moe, _LFM),
)


_PLAIN = Style(bias="attention_bias", output_bias="attention_bias")


@dataclass(frozen=True)
class Mixer:
    """The measures of a layer of Mamba 2: ``heads`` of ``head`` numbers, each with ``state`` numbers beside it."""

    heads: int
    head: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    bias: bool

    def describe(self, at: Parts, hidden: int) -> int:
        """Describe the tensors; return the numbers that the layer keeps."""
        inner = self.heads * self.head
        mixed = inner + 2 * self.groups * self.state
        for name in ("dt_bias", "A_log", "D"):
            at.tensor(name, "table", self.heads)
        at.tensor("conv1d.weight", "conv", mixed, 1, self.kernel)
        if self.conv_bias:
            at.tensor("conv1d.bias", "bias", mixed)
        at.linear("in_proj", hidden, inner + mixed + self.heads, bias=self.bias)
        at.norm("norm", inner, bias=False)
        at.linear("out_proj", inner, hidden, bias=self.bias)
        return inner * self.state + mixed * self.kernel


def _with_caches(shape: Shape, kept: list[int], attends: list[bool]) -> Shape:
    """The shape whose layers keep so many numbers: those that attend for each token, the others once."""
    return replace(shape, cached_numbers=tuple(kept), windows=tuple(None if whole else 1 for whole in attends))


# ---- Nemotron


def _pattern(config: Settings, layers: int) -> str:
    """One letter a layer: M for Mamba, ``*`` for attention, E for experts, ``-`` for a plain feed-forward part."""
    found = config.text("hybrid_override_pattern")
    if len(found) != layers or set(found) - set("M*E-"):
        raise config.bad("hybrid_override_pattern", found, f"{layers} letters of M, *, E and -")
    return found


def _nemotron(config: Settings, parts: Parts) -> Shape:
    """Each layer is one part alone, before it a norm."""
    shape = decoder_shape(config)
    pattern = _pattern(config, shape.layers)
    if "E" in pattern:
        keys = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
        shape = with_experts(config, shape, *keys)
    heads, head, groups, state = (
        width(config, key) for key in ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
    )
    kernel = config.integer("conv_kernel", most=_MOST_KERNEL)
    mixer = Mixer(
        heads, head, groups, state, kernel, config.flag("use_conv_bias", True), config.flag("use_bias", False)
    )
    parts.table("model.embeddings", shape.vocabulary, shape.hidden)
    parts.norm("model.norm_f", shape.hidden, bias=False)
    if not config.flag("tie_word_embeddings", False):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")
    kept = []
    for letter, block in zip(pattern, parts.blocks("model.layers", shape.layers), strict=True):
        block.norm("norm", shape.hidden, bias=False, role="attn_norm" if letter in "M*" else "mlp_norm")
        at = block / "mixer"
        kept.append(_nemotron_part(at, config, shape, mixer, letter))
    return _with_caches(shape, kept, [letter == "*" for letter in pattern])


def _nemotron_part(at: Parts, config: Settings, shape: Shape, mixer: Mixer, letter: str) -> int:
    """Describe the part of a layer; return the numbers that it keeps."""
    if letter == "M":
        return mixer.describe(at, shape.hidden)
    if letter == "*":
        attention(at, config, shape, _PLAIN)
        return 2 * shape.kv_heads * shape.head_dim
    if letter == "-":
        _plain_wide(at, shape.hidden, shape.feed_forward, config.flag("mlp_bias", False))
        return 0
    latent = config.raw("moe_latent_size")
    inner = shape.hidden if latent is None else width(config, "moe_latent_size")
    at.linear("gate", shape.hidden, shape.experts, bias=False, role="router")
    at.tensor("gate.e_score_correction_bias", "router_bias", shape.experts, format="f32")
    at.tensor("experts.up_proj", "experts_up", shape.experts, shape.expert_feed_forward, inner)
    at.tensor("experts.down_proj", "experts_down", shape.experts, inner, shape.expert_feed_forward)
    if latent is not None:
        at.linear("fc1_latent_proj", shape.hidden, inner, bias=False)
        at.linear("fc2_latent_proj", inner, shape.hidden, bias=False)
    shared = width(config, "moe_shared_expert_intermediate_size")
    _plain_wide(at / "shared_experts", shape.hidden, shared, config.flag("mlp_bias", False), "shared_")
    return 0


def _plain_wide(at: Parts, hidden: int, wide: int, bias: bool, prefix: str = "") -> None:
    """A feed-forward part without a gate."""
    at.linear("up_proj", hidden, wide, bias=bias, role=f"{prefix}up")
    at.linear("down_proj", wide, hidden, bias=bias, role=f"{prefix}down")


# ---- Granite 4


def _granite(config: Settings, parts: Parts) -> Shape:
    """Attention or Mamba, then a dense part, beside experts where there are some."""
    shape = replace(decoder_shape(config), feed_forward=width(config, "shared_intermediate_size"))
    if config.integer("num_local_experts", 0, least=0, most=MOST_EXPERTS):
        shape = with_experts(config, shape, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    kinds = config.raw("layer_types")
    known = {"attention": True, "full_attention": True, "mamba": False, "linear_attention": False}
    if not isinstance(kinds, list) or len(kinds) != shape.layers or not all(kind in known for kind in kinds):
        raise config.bad("layer_types", kinds, f"a list of {shape.layers} of {', '.join(known)}")
    attends = [known[kind] for kind in kinds]
    outside(parts, config, shape, _PLAIN)
    kept = []
    for whole, block in zip(attends, parts.blocks("model.layers", shape.layers), strict=True):
        for name, role in _PLAIN.norms:
            block.norm(name, shape.hidden, bias=False, role=role)
        if whole:
            attention(block / "self_attn", config, shape, _PLAIN)
            kept.append(2 * shape.kv_heads * shape.head_dim)
        else:
            kept.append(_granite_mixer(config).describe(block / "mamba", shape.hidden))
        if shape.experts:
            stacked_experts(block / "block_sparse_moe", shape, "router")
        block.linear("shared_mlp.input_linear", shape.hidden, 2 * shape.feed_forward, bias=False, role="gate_up")
        block.linear("shared_mlp.output_linear", shape.feed_forward, shape.hidden, bias=False, role="down")
    return _with_caches(shape, kept, attends)


def _granite_mixer(config: Settings) -> Mixer:
    heads, head, groups, state = (width(config, f"mamba_{key}") for key in ("n_heads", "d_head", "n_groups", "d_state"))
    kernel = config.integer("mamba_d_conv", most=_MOST_KERNEL)
    conv_bias, bias = config.flag("mamba_conv_bias", True), config.flag("mamba_proj_bias", False)
    return Mixer(heads, head, groups, state, kernel, conv_bias, bias)


_NEMOTRON: dict[str, Any] = {"tie_word_embeddings": False, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8}
_NEMOTRON |= {"ssm_state_size": 128, "conv_kernel": 4, "moe_latent_size": None}
_GRANITE = {"tie_word_embeddings": False, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1}
_GRANITE |= {"mamba_d_state": 256, "mamba_d_conv": 4}
_MAMBAS = (
    Description("nemotron_h", "decoder", _nemotron, _NEMOTRON),
    Description("granitemoehybrid", "decoder", _granite, _GRANITE),
)

DESCRIPTIONS = (*_HYBRIDS, *_MAMBAS)
