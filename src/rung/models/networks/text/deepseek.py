"""DeepSeek-V2, V3 and V3.2: multi-head latent attention, and experts of which some are always visited."""

from __future__ import annotations

from dataclasses import replace

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.describing import MOST_EXPERTS, Description, width
from rung.models.networks.parts import Parts
from rung.models.networks.text.experts import decoder_shape, gated, norms, outside, stacked
from rung.models.networks.values import Shape
from rung.models.settings import Settings


def _attention(at: Parts, config: Settings, shape: Shape, latent: int) -> None:
    """Keys and values go through a latent of ``kv_lora_rank``; queries too, unless ``q_lora_rank`` is null."""
    hidden, queries = shape.hidden, shape.heads * shape.head_dim
    bias, rotated = config.flag("attention_bias", False), width(config, "qk_rope_head_dim")
    if config.raw("q_lora_rank") is None:
        at.linear("q_proj", hidden, queries, bias=False, role="q")
    else:
        rank = width(config, "q_lora_rank")
        at.linear("q_a_proj", hidden, rank, bias=bias, role="q_a")
        at.norm("q_a_layernorm", rank, bias=False, role="q_a_norm")
        at.linear("q_b_proj", rank, queries, bias=False, role="q_b")
    at.linear("kv_a_proj_with_mqa", hidden, latent + rotated, bias=bias, role="kv_a")
    at.norm("kv_a_layernorm", latent, bias=False, role="kv_a_norm")
    each = width(config, "qk_nope_head_dim") + shape.value_dim
    at.linear("kv_b_proj", latent, shape.heads * each, bias=False, role="kv_b")
    at.linear("o_proj", shape.heads * shape.value_dim, hidden, bias=bias, role="o")


def _indexer(at: Parts, config: Settings, hidden: int) -> None:
    """Describe what chooses the tokens that a layer attends to (V3.2)."""
    heads, each = config.integer("index_n_heads", most=MOST_EXPERTS), width(config, "index_head_dim")
    at.linear("wq_b", width(config, "q_lora_rank"), heads * each, bias=False)
    at.linear("wk", hidden, each, bias=False)
    at.norm("k_norm", each)
    at.linear("weights_proj", hidden, heads, bias=False)


def _deepseek(config: Settings, parts: Parts, *, corrected: bool, indexed: bool = False) -> Shape:
    """``corrected``: the router has a bias for each expert (V3). ``indexed``: a part of each layer chooses the tokens
    that it attends to (V3.2). Layers that predict further tokens are left out.

    transformers ignores those too (``num_nextn_predict_layers`` of V3: one, 14 billion weights of the file).
    """
    latent, rotated = width(config, "kv_lora_rank"), width(config, "qk_rope_head_dim")
    shape = replace(
        decoder_shape(config),
        head_dim=width(config, "qk_nope_head_dim") + rotated,
        value_dim=width(config, "v_head_dim"),
        latent=latent + rotated + (width(config, "index_head_dim") if indexed else 0),
        experts=config.integer("n_routed_experts", most=MOST_EXPERTS),
        experts_per_token=config.integer("num_experts_per_tok", most=MOST_EXPERTS),
        expert_feed_forward=width(config, "moe_intermediate_size"),
    )
    outside(parts, config, shape)
    shared = config.integer("n_shared_experts", most=MOST_EXPERTS) * shape.expert_feed_forward
    dense = config.integer("first_k_dense_replace", least=0, most=MOST_LAYERS)
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        norms(block, shape.hidden)
        _attention(block / "self_attn", config, shape, latent)
        if indexed:
            _indexer(block / "self_attn.indexer", config, shape.hidden)
        mlp = block / "mlp"
        if index < dense:
            gated(mlp, shape.hidden, shape.feed_forward)
            continue
        stacked(mlp, shape)
        if corrected:
            mlp.tensor("gate.e_score_correction_bias", "router_bias", shape.experts, format="f32")
        gated(mlp / "shared_experts", shape.hidden, shared, "shared_")
    return shape


def _v2(config: Settings, parts: Parts) -> Shape:
    return _deepseek(config, parts, corrected=False)


def v3(config: Settings, parts: Parts) -> Shape:
    """DeepSeek-V3 and what has its modules."""
    return _deepseek(config, parts, corrected=True)


def sparse_attention(config: Settings, parts: Parts) -> Shape:
    """DeepSeek-V3.2 and what has its modules."""
    return _deepseek(config, parts, corrected=True, indexed=True)


INDEX = {"index_n_heads": 64, "index_head_dim": 128}
_COMMON = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
DESCRIPTIONS = (
    Description(
        "deepseek_v2",
        "decoder",
        _v2,
        _COMMON
        | {"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "max_position_embeddings": 2048, "first_k_dense_replace": 0}
        | {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407},
    ),
    Description(
        "deepseek_v3",
        "decoder",
        v3,
        _COMMON
        | {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61}
        | {"num_attention_heads": 128, "max_position_embeddings": 4096, "first_k_dense_replace": 3}
        | {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8},
    ),
    Description(
        "deepseek_v32",
        "decoder",
        sparse_attention,
        _COMMON
        | INDEX
        | {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61}
        | {"num_attention_heads": 128, "max_position_embeddings": 4096, "first_k_dense_replace": 3}
        | {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8},
    ),
)
