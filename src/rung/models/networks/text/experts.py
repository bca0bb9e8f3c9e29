"""Decoders whose feed-forward part is a mixture of experts: Mixtral, Qwen2-MoE, Qwen3-MoE and gpt-oss.

Names and stacking of the experts are those of the modules of transformers 5; older checkpoints hold them one by one.
"""

from __future__ import annotations

from dataclasses import replace

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.describing import MOST_EXPERTS, Description, Parts, layer_count, width, windows
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_COMMON = {"hidden_act": "silu", "tie_word_embeddings": False}


def decoder_shape(config: Settings) -> Shape:
    """The measures that these decoders share, without experts and windows."""
    hidden, heads = width(config, "hidden_size"), width(config, "num_attention_heads")
    return Shape(
        layers=layer_count(config),
        hidden=hidden,
        heads=heads,
        kv_heads=width(config, "num_key_value_heads", heads),
        head_dim=width(config, "head_dim", max(hidden // heads, 1)),
        feed_forward=width(config, "intermediate_size"),
        vocabulary=width(config, "vocab_size"),
        context=config.integer("max_position_embeddings"),
    )


def outside(parts: Parts, config: Settings, shape: Shape) -> None:
    """Embedding, last norm, and the head where it is not the embedding."""
    parts.table("model.embed_tokens", shape.vocabulary, shape.hidden)
    parts.norm("model.norm", shape.hidden, bias=False)
    if not config.flag("tie_word_embeddings", False):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")


def norms(block: Parts, hidden: int) -> None:
    """The norms before attention and before the feed-forward part."""
    block.norm("input_layernorm", hidden, bias=False, role="attn_norm")
    block.norm("post_attention_layernorm", hidden, bias=False, role="mlp_norm")


def gated(at: Parts, hidden: int, wide: int, prefix: str = "") -> None:
    """A gated feed-forward part."""
    at.linear("gate_proj", hidden, wide, bias=False, role=f"{prefix}gate")
    at.linear("up_proj", hidden, wide, bias=False, role=f"{prefix}up")
    at.linear("down_proj", wide, hidden, bias=False, role=f"{prefix}down")


def stacked(mlp: Parts, shape: Shape) -> None:
    """The router and the experts of a layer: gate and up [experts, 2 x wide, hidden], down [experts, hidden, wide]."""
    wide = shape.expert_feed_forward
    mlp.linear("gate", shape.hidden, shape.experts, bias=False, role="router")
    mlp.tensor("experts.gate_up_proj", "experts_gate_up", shape.experts, 2 * wide, shape.hidden)
    mlp.tensor("experts.down_proj", "experts_down", shape.experts, shape.hidden, wide)


def _attention(at: Parts, shape: Shape, *, bias: bool, output_bias: bool) -> None:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    at.linear("q_proj", shape.hidden, q, bias=bias, role="q")
    at.linear("k_proj", shape.hidden, kv, bias=bias, role="k")
    at.linear("v_proj", shape.hidden, kv, bias=bias, role="v")
    at.linear("o_proj", q, shape.hidden, bias=output_bias, role="o")


def _with_experts(config: Settings, shape: Shape, count: str, wide: str) -> Shape:
    return replace(
        shape,
        experts=config.integer(count, most=MOST_EXPERTS),
        experts_per_token=config.integer("num_experts_per_tok", most=MOST_EXPERTS),
        expert_feed_forward=width(config, wide),
    )


def _mixtral(config: Settings, parts: Parts) -> Shape:
    base = decoder_shape(config)
    shape = _with_experts(
        config,
        replace(base, windows=windows(config, base.layers, lambda index: True)),
        "num_local_experts",
        "intermediate_size",
    )
    outside(parts, config, shape)
    for block in parts.blocks("model.layers", shape.layers):
        norms(block, shape.hidden)
        _attention(block / "self_attn", shape, bias=False, output_bias=False)
        stacked(block / "mlp", shape)
    return shape


def _sparse(config: Settings, shape: Shape) -> list[bool]:
    """Which layers of a Qwen model have experts; the others are dense."""
    step, dense = config.integer("decoder_sparse_step"), config.raw("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise config.bad("mlp_only_layers", dense, "a list of layers")
    return [index not in dense and (index + 1) % step == 0 for index in range(shape.layers)]


def _qwen2_moe(config: Settings, parts: Parts) -> Shape:
    base = decoder_shape(config)
    most = config.integer("max_window_layers", least=0)
    base = replace(base, windows=windows(config, base.layers, lambda index: index % 2 == 0 and index < most))
    shape = _with_experts(config, base, "num_experts", "moe_intermediate_size")
    outside(parts, config, shape)
    sparse = _sparse(config, shape)
    shared = width(config, "shared_expert_intermediate_size")
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        norms(block, shape.hidden)
        _attention(block / "self_attn", shape, bias=config.flag("qkv_bias", True), output_bias=False)
        mlp = block / "mlp"
        if not sparse[index]:
            gated(mlp, shape.hidden, shape.feed_forward)
            continue
        stacked(mlp, shape)
        gated(mlp / "shared_expert", shape.hidden, shared, "shared_")
        mlp.linear("shared_expert_gate", shape.hidden, 1, bias=False, role="shared_router")
    return shape


def _qwen3_moe(config: Settings, parts: Parts) -> Shape:
    base = decoder_shape(config)
    base = replace(base, windows=windows(config, base.layers, lambda index: True))
    count = "num_experts" if "num_experts" in config else "num_local_experts"
    shape = _with_experts(config, base, count, "moe_intermediate_size")
    outside(parts, config, shape)
    sparse, bias = _sparse(config, shape), config.flag("attention_bias", False)
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        norms(block, shape.hidden)
        attention = block / "self_attn"
        _attention(attention, shape, bias=bias, output_bias=bias)
        attention.norm("q_norm", shape.head_dim, bias=False, role="q_norm")
        attention.norm("k_norm", shape.head_dim, bias=False, role="k_norm")
        if sparse[index]:
            stacked(block / "mlp", shape)
        else:
            gated(block / "mlp", shape.hidden, shape.feed_forward)
    return shape


def _gpt_oss(config: Settings, parts: Parts) -> Shape:
    """Its experts are [experts, in, out]; OpenAI stores them as mxfp4 with the blocks along ``in``."""
    base = decoder_shape(config)
    base = replace(base, windows=windows(config, base.layers, lambda index: index % 2 == 0))
    shape = _with_experts(config, base, "num_local_experts", "intermediate_size")
    outside(parts, config, shape)
    hidden, wide, count = shape.hidden, shape.expert_feed_forward, shape.experts
    bias = config.flag("attention_bias", True)
    for block in parts.blocks("model.layers", shape.layers):
        norms(block, hidden)
        attention = block / "self_attn"
        _attention(attention, shape, bias=bias, output_bias=bias)
        attention.tensor("sinks", "sinks", shape.heads)
        mlp = block / "mlp"
        mlp.linear("router", hidden, count, role="router")
        mlp.tensor("experts.gate_up_proj", "experts_gate_up", count, hidden, 2 * wide)
        mlp.tensor("experts.gate_up_proj_bias", "experts_gate_up_bias", count, 2 * wide)
        mlp.tensor("experts.down_proj", "experts_down", count, wide, hidden)
        mlp.tensor("experts.down_proj_bias", "experts_down_bias", count, hidden)
    return shape


_MIXTURES = (
    Description(
        "mixtral",
        "decoder",
        _mixtral,
        _COMMON
        | {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072}
        | {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    Description(
        "qwen2_moe",
        "decoder",
        _qwen2_moe,
        _COMMON
        | {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24}
        | {"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 32768}
        | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "qkv_bias": True}
        | {"decoder_sparse_step": 1, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
        | {"num_experts_per_tok": 4, "num_experts": 60},
    ),
    Description(
        "qwen3_moe",
        "decoder",
        _qwen3_moe,
        _COMMON
        | {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24}
        | {"num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768}
        | {"use_sliding_window": False, "sliding_window": 4096, "attention_bias": False, "decoder_sparse_step": 1}
        | {"moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_local_experts": 128},
    ),
    Description(
        "gpt_oss",
        "decoder",
        _gpt_oss,
        _COMMON
        | {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36}
        | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128}
        | {"max_position_embeddings": 131072, "attention_bias": True}
        | {"num_local_experts": 128, "num_experts_per_tok": 4},
    ),
)


def _latent_attention(at: Parts, config: Settings, shape: Shape, latent: int) -> None:
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
        _latent_attention(block / "self_attn", config, shape, latent)
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
_DEEPSEEK = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
_DEEPSEEKS = (
    Description(
        "deepseek_v2",
        "decoder",
        _v2,
        _DEEPSEEK
        | {"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "max_position_embeddings": 2048, "first_k_dense_replace": 0}
        | {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407},
    ),
    Description(
        "deepseek_v3",
        "decoder",
        v3,
        _DEEPSEEK
        | {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61}
        | {"num_attention_heads": 128, "max_position_embeddings": 4096, "first_k_dense_replace": 3}
        | {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8},
    ),
    Description(
        "deepseek_v32",
        "decoder",
        sparse_attention,
        _DEEPSEEK
        | INDEX
        | {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61}
        | {"num_attention_heads": 128, "max_position_embeddings": 4096, "first_k_dense_replace": 3}
        | {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8},
    ),
)

DESCRIPTIONS = (*_MIXTURES, *_DEEPSEEKS)
