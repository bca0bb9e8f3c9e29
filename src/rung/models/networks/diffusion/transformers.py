"""Denoisers that are transformers: Stable Diffusion 3 and FLUX.1 for pictures; Latte, LTX-Video and Wan for video."""

from __future__ import annotations

import math

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, Parts, layer_count, width, widths
from rung.models.networks.diffusion.common import TIME, added, attention, feed_forward, is_gated, projection, shape_of
from rung.models.networks.values import Shape
from rung.models.settings import Settings


def _joint(block: Parts, hidden: int, *, norm: int, last: bool, dual: bool) -> None:
    """A block in which pictures and text attend to each other; ``dual``: pictures once more among themselves."""
    block.linear("norm1.linear", hidden, (9 if dual else 6) * hidden, role="modulation")
    block.linear("norm1_context.linear", hidden, (2 if last else 6) * hidden, role="modulation")
    attention(block / "attn", hidden, norm=norm)
    added(block / "attn", hidden, norm=norm, last=last)
    if dual:
        attention(block / "attn2", hidden, norm=norm)
    feed_forward(block / "ff", hidden, 4 * hidden)
    if not last:
        feed_forward(block / "ff_context", hidden, 4 * hidden)


def _sd3(config: Settings, parts: Parts) -> Shape:
    shape = shape_of(config, layer_count(config, "num_layers"))
    hidden, patch, channels = shape.hidden, config.integer("patch_size"), width(config, "in_channels")
    if config.raw("qk_norm") not in (None, "rms_norm"):
        raise UnknownArchitecture(f"{config.where} asks for the norm {str(config.raw('qk_norm'))[:40]!r}")
    dual = config.raw("dual_attention_layers") or []
    if not isinstance(dual, list):
        raise config.bad("dual_attention_layers", dual, "a list of layers")
    norm = shape.head_dim if config.raw("qk_norm") else 0
    parts.tensor("pos_embed.pos_embed", "positions", 1, config.integer("pos_embed_max_size", most=2**12) ** 2, hidden)
    parts.conv("pos_embed.proj", channels, hidden, patch, patch)
    projection(parts / "time_text_embed.timestep_embedder", TIME, hidden)
    projection(parts / "time_text_embed.text_embedder", width(config, "pooled_projection_dim"), hidden)
    parts.linear("context_embedder", width(config, "joint_attention_dim"), width(config, "caption_projection_dim"))
    for index, block in enumerate(parts.blocks("transformer_blocks", shape.layers)):
        _joint(block, hidden, norm=norm, last=index == shape.layers - 1, dual=index in dual)
    parts.linear("norm_out.linear", hidden, 2 * hidden, role="modulation")
    parts.linear("proj_out", hidden, patch * patch * width(config, "out_channels", channels))
    return shape


def _flux(config: Settings, parts: Parts) -> Shape:
    """Blocks of two streams, then blocks of one in which attention and feed-forward part share their output."""
    double = layer_count(config, "num_layers")
    single = layer_count(config, "num_single_layers")
    shape = shape_of(config, double + single)
    hidden, norm, patch = shape.hidden, shape.head_dim, config.integer("patch_size")
    channels = width(config, "in_channels")
    time = parts / "time_text_embed"
    projection(time / "timestep_embedder", TIME, hidden)
    if config.flag("guidance_embeds", False):
        projection(time / "guidance_embedder", TIME, hidden)
    projection(time / "text_embedder", width(config, "pooled_projection_dim"), hidden)
    parts.linear("context_embedder", width(config, "joint_attention_dim"), hidden)
    parts.linear("x_embedder", channels, hidden)
    for block in parts.blocks("transformer_blocks", double):
        _joint(block, hidden, norm=norm, last=False, dual=False)
    for block in parts.blocks("single_transformer_blocks", single, double):
        block.linear("norm.linear", hidden, 3 * hidden, role="modulation")
        block.linear("proj_mlp", hidden, 4 * hidden, role="up")
        block.linear("proj_out", 5 * hidden, hidden, role="down")
        at = block / "attn"
        at.norm("norm_q", norm, bias=False, role="q_norm")
        at.norm("norm_k", norm, bias=False, role="k_norm")
        for name in ("q", "k", "v"):
            at.linear(f"to_{name}", hidden, hidden, role=name)
    parts.linear("norm_out.linear", hidden, 2 * hidden, role="modulation")
    parts.linear("proj_out", hidden, patch * patch * width(config, "out_channels", channels))
    return shape


_OF_PICTURES = (
    Description(
        "SD3Transformer2DModel",
        "denoiser",
        _sd3,
        {"patch_size": 2, "in_channels": 16, "num_layers": 18, "attention_head_dim": 64, "num_attention_heads": 18}
        | {"joint_attention_dim": 4096, "caption_projection_dim": 1152, "pooled_projection_dim": 2048}
        | {"out_channels": 16, "pos_embed_max_size": 96},
    ),
    Description(
        "FluxTransformer2DModel",
        "denoiser",
        _flux,
        {"patch_size": 1, "in_channels": 64, "num_layers": 19, "num_single_layers": 38, "attention_head_dim": 128}
        | {"num_attention_heads": 24, "joint_attention_dim": 4096, "pooled_projection_dim": 768},
    ),
)


def _latte(config: Settings, parts: Parts) -> Shape:
    """Blocks over space and blocks over time take turns; only the first look at the text."""
    if config.text("norm_type") != "ada_norm_single" or config.flag("norm_elementwise_affine", True):
        raise UnknownArchitecture(f"{config.where} describes a Latte with other norms than the published one")
    layers = layer_count(config, "num_layers")
    shape = shape_of(config, 2 * layers)
    hidden, patch, bias = shape.hidden, config.integer("patch_size"), config.flag("attention_bias", False)
    channels = width(config, "in_channels")
    parts.tensor("scale_shift_table", "table", 2, hidden)
    parts.conv("pos_embed.proj", channels, hidden, patch, patch)
    for first, name in ((0, "transformer_blocks"), (layers, "temporal_transformer_blocks")):
        for block in parts.blocks(name, layers, first):
            block.tensor("scale_shift_table", "table", 6, hidden)
            attention(block / "attn1", hidden, bias=bias)
            if not first:
                attention(block / "attn2", hidden, context=width(config, "cross_attention_dim", hidden), bias=bias)
            feed_forward(block / "ff", hidden, 4 * hidden, gated=is_gated(config))
    parts.linear("proj_out", hidden, patch * patch * width(config, "out_channels", channels))
    projection(parts / "adaln_single.emb.timestep_embedder", TIME, hidden)
    parts.linear("adaln_single.linear", hidden, 6 * hidden)
    projection(parts / "caption_projection", width(config, "caption_channels"), hidden)
    return shape


def _across_heads(config: Settings, hidden: int) -> int:
    """Width of the norm of queries and keys: that of all heads together, or 0 for none."""
    kind = config.raw("qk_norm")
    if kind not in (None, "rms_norm_across_heads"):
        raise UnknownArchitecture(f"{config.where} asks for the norm {str(kind)[:40]!r} of queries and keys")
    return hidden if kind else 0


def _ltx(config: Settings, parts: Parts) -> Shape:
    shape = shape_of(config, layer_count(config, "num_layers"))
    if config.flag("norm_elementwise_affine", False):
        raise UnknownArchitecture(f"{config.where} describes an LTX-Video with weights in its norms")
    hidden, norm = shape.hidden, _across_heads(config, shape.hidden)
    bias = {"bias": config.flag("attention_bias", True), "output_bias": config.flag("attention_out_bias", True)}
    channels = width(config, "in_channels")
    parts.tensor("scale_shift_table", "table", 2, hidden)
    parts.linear("proj_in", channels, hidden)
    projection(parts / "time_embed.emb.timestep_embedder", TIME, hidden)
    parts.linear("time_embed.linear", hidden, 6 * hidden)
    projection(parts / "caption_projection", width(config, "caption_channels"), hidden)
    for block in parts.blocks("transformer_blocks", shape.layers):
        block.tensor("scale_shift_table", "table", 6, hidden)
        attention(block / "attn1", hidden, norm=norm, **bias)
        attention(block / "attn2", hidden, context=width(config, "cross_attention_dim"), norm=norm, **bias)
        feed_forward(block / "ff", hidden, 4 * hidden, gated=is_gated(config))
    parts.linear("proj_out", hidden, width(config, "out_channels", channels))
    return shape


def _pictures(parts: Parts, config: Settings, hidden: int) -> None:
    """Add what turns the features of a first picture into context, in the models that start from one."""
    size = width(config, "image_dim")
    image = parts / "condition_embedder.image_embedder"
    image.norm("norm1", size)
    _narrowing(image / "ff", size, hidden)
    image.norm("norm2", hidden)
    if "pos_embed_seq_len" in config:
        image.tensor("pos_embed", "table", 1, width(config, "pos_embed_seq_len"), size)


def _narrowing(at: Parts, inner: int, outer: int) -> None:
    """A feed-forward part that keeps its width and changes it at the end."""
    at.linear("net.0.proj", inner, inner, role="up")
    at.linear("net.2", inner, outer, role="down")


def _wan(config: Settings, parts: Parts) -> Shape:
    wide = width(config, "ffn_dim")
    shape = shape_of(config, layer_count(config, "num_layers"), wide)
    hidden, norm = shape.hidden, _across_heads(config, shape.hidden)
    patch, channels = widths(config, "patch_size", 3, 3), width(config, "in_channels")
    parts.tensor("scale_shift_table", "table", 1, 2, hidden)
    parts.conv("patch_embedding", channels, hidden, *patch)
    projection(parts / "condition_embedder.time_embedder", width(config, "freq_dim"), hidden)
    parts.linear("condition_embedder.time_proj", hidden, 6 * hidden)
    projection(parts / "condition_embedder.text_embedder", width(config, "text_dim"), hidden)
    if "image_dim" in config:
        _pictures(parts, config, hidden)
    for block in parts.blocks("blocks", shape.layers):
        block.tensor("scale_shift_table", "table", 1, 6, hidden)
        attention(block / "attn1", hidden, norm=norm)
        crossed = block / "attn2"
        attention(crossed, hidden, norm=norm)
        if "added_kv_proj_dim" in config:
            for name in ("k", "v"):
                crossed.linear(f"add_{name}_proj", width(config, "added_kv_proj_dim"), hidden, role=name)
            crossed.norm("norm_added_k", hidden, bias=False, role="k_norm")
        if config.flag("cross_attn_norm", True):
            block.norm("norm2", hidden)
        feed_forward(block / "ffn", hidden, wide)
    parts.linear("proj_out", hidden, width(config, "out_channels", channels) * math.prod(patch))
    return shape


_OF_VIDEO = (
    Description(
        "LatteTransformer3DModel",
        "denoiser",
        _latte,
        {"num_attention_heads": 16, "attention_head_dim": 88, "num_layers": 1, "attention_bias": False}
        | {"norm_type": "layer_norm", "norm_elementwise_affine": True, "activation_fn": "geglu"},
    ),
    Description(
        "LTXVideoTransformer3DModel",
        "denoiser",
        _ltx,
        {"in_channels": 128, "out_channels": 128, "num_attention_heads": 32, "attention_head_dim": 64}
        | {"cross_attention_dim": 2048, "num_layers": 28, "qk_norm": "rms_norm_across_heads"}
        | {"caption_channels": 4096, "norm_elementwise_affine": False, "activation_fn": "gelu-approximate"},
    ),
    Description(
        "WanTransformer3DModel",
        "denoiser",
        _wan,
        {"patch_size": [1, 2, 2], "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16}
        | {"out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 13824, "num_layers": 40}
        | {"cross_attn_norm": True, "qk_norm": "rms_norm_across_heads"},
    ),
)

DESCRIPTIONS = (*_OF_PICTURES, *_OF_VIDEO)
