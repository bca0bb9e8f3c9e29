"""Gemma 3n and Gemma 4: layers that are not alike, some of which take the keys and values of an earlier one.

Layers that see all tokens have wider heads than those with a window (Gemma 4), and the last layers may have wider
feed-forward parts. The small models add to each layer a row of a second embedding, which is looked up and not
multiplied. Names are those of the modules of transformers 5; files also hold keys and values of the layers that take
those of others, which nothing reads.
"""

from __future__ import annotations

from dataclasses import replace

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.describing import Description, Parts, width, windows
from rung.models.networks.text.experts import decoder_shape, gated
from rung.models.networks.text.sparse import stacked_experts, with_experts
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_NORMS = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "mlp_norm"),
    ("post_feedforward_layernorm", "mlp_post_norm"),
)


def _sees_all(shape: Shape) -> list[bool]:
    """Which layers see all tokens."""
    return [window is None for window in shape.windows]


def _owners(config: Settings, shape: Shape) -> int:
    """The number of layers that have keys and values of their own; those after them take theirs."""
    return shape.layers - config.integer("num_kv_shared_layers", 0, least=0, most=shape.layers - 1)


def _attention(at: Parts, shape: Shape, kv_heads: int, head_dim: int, *, owns: bool, values: bool) -> int:
    """Describe the attention of a layer; return the numbers that a token leaves in its cache.

    ``owns``: it has keys and values; without ``values`` the values are the keys before their rotation.
    """
    kv = kv_heads * head_dim
    at.linear("q_proj", shape.hidden, shape.heads * head_dim, bias=False, role="q")
    at.norm("q_norm", head_dim, bias=False, role="q_norm")
    at.linear("o_proj", shape.heads * head_dim, shape.hidden, bias=False, role="o")
    if not owns:
        return 0
    at.linear("k_proj", shape.hidden, kv, bias=False, role="k")
    at.norm("k_norm", head_dim, bias=False, role="k_norm")
    if values:
        at.linear("v_proj", shape.hidden, kv, bias=False, role="v")
    return 2 * kv


def _outside(parts: Parts, config: Settings, shape: Shape) -> int:
    """Describe what belongs to no layer; return the width of the embedding of each layer, 0 for none."""
    each = config.integer("hidden_size_per_layer_input", least=0, most=shape.hidden)
    parts.table("model.embed_tokens", shape.vocabulary, shape.hidden)
    parts.norm("model.norm", shape.hidden, bias=False)
    if each:
        rows, wide = width(config, "vocab_size_per_layer_input"), shape.layers * each
        parts.table("model.embed_tokens_per_layer", rows, wide, "layer_embed")
        parts.linear("model.per_layer_model_projection", shape.hidden, wide, bias=False)
        parts.norm("model.per_layer_projection_norm", each, bias=False)
    if not config.flag("tie_word_embeddings", True):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")
    return each


def _layer_input(block: Parts, hidden: int, each: int) -> None:
    """Describe how a layer takes its row of the second embedding."""
    if each:
        block.linear("per_layer_input_gate", hidden, each, bias=False)
        block.linear("per_layer_projection", each, hidden, bias=False)
        block.norm("post_per_layer_input_norm", hidden, bias=False)


def _base(config: Settings, every: int) -> Shape:
    """The measures, with the window of each layer: every so many-th layer sees all tokens."""
    shape = decoder_shape(config)
    return replace(shape, windows=windows(config, shape.layers, lambda index: (index + 1) % every != 0))


# ---- Gemma 4


def _gemma4(config: Settings, parts: Parts) -> Shape:
    shape = _base(config, 6)
    sparse, keys_only = config.flag("enable_moe_block", False), config.flag("attention_k_eq_v", False)
    if sparse:
        shape = with_experts(config, shape, "num_experts", "top_k_experts", "moe_intermediate_size")
    owners, each = _owners(config, shape), _outside(parts, config, shape)
    global_dim = width(config, "global_head_dim")
    global_kv = width(config, "num_global_key_value_heads", shape.kv_heads) if keys_only else shape.kv_heads
    kept = []
    for index, (whole, block) in enumerate(
        zip(_sees_all(shape), parts.blocks("model.layers", shape.layers), strict=True)
    ):
        for name, role in _NORMS:
            block.norm(name, shape.hidden, bias=False, role=role)
        block.tensor("layer_scalar", "table", 1)
        kv, dim = (global_kv, global_dim) if whole else (shape.kv_heads, shape.head_dim)
        owns, values = index < owners, not (keys_only and whole)
        kept.append(_attention(block / "self_attn", shape, kv, dim, owns=owns, values=values))
        doubled = config.flag("use_double_wide_mlp", False) and not owns
        gated(block / "mlp", shape.hidden, shape.feed_forward * (2 if doubled else 1))
        _layer_input(block, shape.hidden, each)
        if sparse:
            _gemma4_experts(block, shape)
    return replace(shape, cached_numbers=tuple(kept))


def _gemma4_experts(block: Parts, shape: Shape) -> None:
    """Describe experts beside the dense part, with norms of their own."""
    for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        block.norm(name, shape.hidden, bias=False)
    block.tensor("router.scale", "table", shape.hidden)
    block.tensor("router.per_expert_scale", "table", shape.experts)
    stacked_experts(block, shape, "router.proj")


# ---- Gemma 3n


def _gemma3n(config: Settings, parts: Parts) -> Shape:
    """Each layer predicts several hidden states and computes one (``altup``), beside a product of low rank."""
    wide = config.raw("intermediate_size")
    alike = isinstance(wide, list) and wide and all(each == wide[0] for each in wide)
    if alike:
        config = Settings({**config.values, "intermediate_size": wide[0]}, config.where)
    shape = _base(config, 5)
    owners, each = _owners(config, shape), _outside(parts, config, shape)
    states, rank = config.integer("altup_num_inputs", most=MOST_LAYERS), width(config, "laurel_rank")
    for name in ("altup_projections", "altup_unembed_projections"):
        for index in range(states - 1):
            parts.linear(f"model.{name}.{index}", shape.hidden, shape.hidden, bias=False)
    kept = []
    for index, block in enumerate(parts.blocks("model.layers", shape.layers)):
        for name, role in _NORMS:
            block.norm(name, shape.hidden, bias=False, role=role)
        owns, at = index < owners, block / "self_attn"
        kept.append(_attention(at, shape, shape.kv_heads, shape.head_dim, owns=owns, values=True))
        gated(block / "mlp", shape.hidden, shape.feed_forward)
        _layer_input(block, shape.hidden, each)
        _altup(block / "altup", shape.hidden, states)
        block.linear("laurel.linear_left", shape.hidden, rank, bias=False)
        block.linear("laurel.linear_right", rank, shape.hidden, bias=False)
        block.norm("laurel.post_laurel_norm", shape.hidden, bias=False)
    return replace(shape, cached_numbers=tuple(kept))


def _altup(at: Parts, hidden: int, states: int) -> None:
    """Describe how the hidden states that a layer does not compute are predicted and corrected."""
    at.tensor("correct_output_scale", "table", hidden)
    at.linear("correction_coefs", states, states, bias=False)
    at.linear("prediction_coefs", states, states * states, bias=False)
    at.linear("modality_router", hidden, states, bias=False, role="router")
    at.norm("router_norm", hidden, bias=False)


_COMMON = {"tie_word_embeddings": True, "sliding_window": 512, "head_dim": 256, "hidden_size_per_layer_input": 256}
_COMMON |= {"vocab_size_per_layer_input": 262144}
DESCRIPTIONS = (
    Description("gemma4_text", "decoder", _gemma4, _COMMON | {"global_head_dim": 512}),
    Description("gemma3n_text", "decoder", _gemma3n, _COMMON | {"altup_num_inputs": 4, "laurel_rank": 64}),
)
