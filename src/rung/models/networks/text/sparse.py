"""Mixtures of experts beside those of ``experts`` and ``deepseek``; names as in transformers 5."""

from __future__ import annotations

from dataclasses import replace

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.describing import MOST_EXPERTS, Description, Parts, width, windows
from rung.models.networks.text import experts
from rung.models.networks.text.dense import Style, attention, outside
from rung.models.networks.text.experts import decoder_shape, gated, stacked
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_HEAD_NORMS = ("q_norm", "k_norm")
_PLAIN = Style(bias="attention_bias", output_bias="attention_bias")


def with_experts(config: Settings, shape: Shape, count: str, visited: str, wide: str) -> Shape:
    """The shape with the experts that the configuration has under these keys."""
    return replace(
        shape,
        experts=config.integer(count, most=MOST_EXPERTS),
        experts_per_token=config.integer(visited, most=MOST_EXPERTS),
        expert_feed_forward=width(config, wide),
    )


def _layer(block: Parts, config: Settings, shape: Shape, style: Style) -> None:
    """Norms and attention of a layer."""
    for name, role in style.norms:
        block.norm(name, shape.hidden, bias=style.norm_bias, role=role)
    attention(block / "self_attn", config, shape, style)


def stacked_experts(at: Parts, shape: Shape, router: str) -> None:
    """Stacked experts beside a router of another name."""
    wide = shape.expert_feed_forward
    at.linear(router, shape.hidden, shape.experts, bias=False, role="router")
    at.tensor("experts.gate_up_proj", "experts_gate_up", shape.experts, 2 * wide, shape.hidden)
    at.tensor("experts.down_proj", "experts_down", shape.experts, shape.hidden, wide)


def _olmoe(config: Settings, parts: Parts) -> Shape:
    style = replace(_PLAIN, qk_norms=_HEAD_NORMS, qk_whole=True)
    shape = with_experts(config, decoder_shape(config), "num_experts", "num_experts_per_tok", "intermediate_size")
    outside(parts, config, shape, style)
    for block in parts.blocks("model.layers", shape.layers):
        _layer(block, config, shape, style)
        stacked(block / "mlp", shape)
    return shape


def _granite(config: Settings, parts: Parts) -> Shape:
    shape = with_experts(config, decoder_shape(config), "num_local_experts", "num_experts_per_tok", "intermediate_size")
    outside(parts, config, shape, _PLAIN)
    for block in parts.blocks("model.layers", shape.layers):
        _layer(block, config, shape, _PLAIN)
        stacked_experts(block / "block_sparse_moe", shape, "router")
    return shape


def _routed(config: Settings, parts: Parts, style: Style) -> Shape:
    """GLM 4.5 and dots.llm1: experts as in DeepSeek-V3 beside ordinary attention."""
    keys = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
    shape = with_experts(config, decoder_shape(config), *keys)
    outside(parts, config, shape, style)
    shared = config.integer("n_shared_experts", 0, least=0, most=MOST_EXPERTS) * shape.expert_feed_forward
    dense = config.integer("first_k_dense_replace", least=0, most=MOST_LAYERS)
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        _layer(block, config, shape, style)
        mlp = block / "mlp"
        if index < dense:
            gated(mlp, shape.hidden, shape.feed_forward)
            continue
        stacked(mlp, shape)
        mlp.tensor("gate.e_score_correction_bias", "router_bias", shape.experts, format="f32")
        if shared:
            gated(mlp / "shared_experts", shape.hidden, shared, "shared_")
    return shape


def _glm(config: Settings, parts: Parts) -> Shape:
    norms = _HEAD_NORMS if config.flag("use_qk_norm", False) else ("", "")
    return _routed(config, parts, Style(bias="attention_bias", qk_norms=norms))


def _dots(config: Settings, parts: Parts) -> Shape:
    return _routed(config, parts, replace(_PLAIN, qk_norms=_HEAD_NORMS))


def _ernie(config: Settings, parts: Parts) -> Shape:
    style = Style(bias="use_bias", output_bias="use_bias")
    shape = with_experts(config, decoder_shape(config), "moe_num_experts", "moe_k", "moe_intermediate_size")
    outside(parts, config, shape, style)
    shared = config.integer("moe_num_shared_experts", 0, least=0, most=MOST_EXPERTS) * shape.expert_feed_forward
    first = config.integer("moe_layer_start_index", least=0, most=MOST_LAYERS)
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        _layer(block, config, shape, style)
        mlp = block / "mlp"
        if index < first:
            gated(mlp, shape.hidden, shape.feed_forward)
            continue
        stacked(mlp, shape)
        mlp.tensor("gate.moe_statics.e_score_correction_bias", "router_bias", 1, shape.experts, format="f32")
        if shared:
            gated(mlp / "shared_experts", shape.hidden, shared, "shared_")
    return shape


def _hunyuan(config: Settings, parts: Parts) -> Shape:
    style = replace(_PLAIN, qk_norms=("query_layernorm", "key_layernorm"))
    shape = with_experts(config, decoder_shape(config), "num_experts", "moe_topk", "intermediate_size")
    outside(parts, config, shape, style)
    for block in parts.blocks("model.layers", shape.layers):
        _layer(block, config, shape, style)
        mlp = block / "mlp"
        stacked_experts(mlp, shape, "gate.wg")
        gated(mlp / "shared_mlp", shape.hidden, shape.expert_feed_forward, "shared_")
    return shape


def _minimax(config: Settings, parts: Parts) -> Shape:
    style = Style(qk_norms=_HEAD_NORMS, qk_whole=True)
    shape = with_experts(config, decoder_shape(config), "num_local_experts", "num_experts_per_tok", "intermediate_size")
    outside(parts, config, shape, style)
    for block in parts.blocks("model.layers", shape.layers):
        _layer(block, config, shape, style)
        stacked(block / "mlp", shape)
        block.tensor("mlp.e_score_correction_bias", "router_bias", shape.experts, format="f32")
    return shape


def _phi(config: Settings, parts: Parts) -> Shape:
    style = replace(_PLAIN, norm_bias=True, head_bias=config.flag("lm_head_bias", False))
    shape = with_experts(config, decoder_shape(config), "num_local_experts", "num_experts_per_tok", "intermediate_size")
    outside(parts, config, shape, style)
    for block in parts.blocks("model.layers", shape.layers):
        _layer(block, config, shape, style)
        stacked_experts(block / "mlp", shape, "router")
    return shape


def _llama(config: Settings, parts: Parts) -> Shape:
    """Llama 4: experts [experts, in, out]; three layers of four attend within chunks of tokens."""
    step = config.integer("interleave_moe_layer_step", most=MOST_LAYERS)
    shape = with_experts(config, decoder_shape(config), "num_local_experts", "num_experts_per_tok", "intermediate_size")
    chunk = Settings({"sliding_window": config.raw("attention_chunk_size")}, config.where)
    shape = replace(shape, windows=windows(chunk, shape.layers, lambda index: index % 4 != 3))
    dense, wide = width(config, "intermediate_size_mlp"), shape.expert_feed_forward
    outside(parts, config, shape, _PLAIN)
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        _layer(block, config, shape, _PLAIN)
        mlp = block / "feed_forward"
        if (index + 1) % step:
            gated(mlp, shape.hidden, dense)
            continue
        mlp.linear("router", shape.hidden, shape.experts, bias=False, role="router")
        mlp.tensor("experts.gate_up_proj", "experts_gate_up", shape.experts, shape.hidden, 2 * wide)
        mlp.tensor("experts.down_proj", "experts_down", shape.experts, wide, shape.hidden)
        gated(mlp / "shared_expert", shape.hidden, wide, "shared_")
    return shape


_UNTIED, _TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
DESCRIPTIONS = (
    Description("olmoe", "decoder", _olmoe, _UNTIED),
    Description("granitemoe", "decoder", _granite, _UNTIED),
    Description("glm4_moe", "decoder", _glm, _UNTIED | {"n_shared_experts": 1, "first_k_dense_replace": 1}),
    Description("dots1", "decoder", _dots, _UNTIED | {"first_k_dense_replace": 0}),
    Description("glm_moe_dsa", "decoder", experts.sparse_attention, _UNTIED | experts.INDEX | {"index_n_heads": 32}),
    Description("glm4_moe_lite", "decoder", experts.v3, _UNTIED | {"first_k_dense_replace": 1, "n_shared_experts": 1}),
    Description("ernie4_5_moe", "decoder", _ernie, _TIED | {"moe_num_shared_experts": 2, "moe_layer_start_index": 1}),
    Description("hunyuan_v1_moe", "decoder", _hunyuan, _UNTIED),
    Description("minimax_m2", "decoder", _minimax, _UNTIED),
    Description("phimoe", "decoder", _phi, _UNTIED),
    Description(
        "llama4_text",
        "decoder",
        _llama,
        _UNTIED | {"interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "intermediate_size_mlp": 16384},
    ),
)
