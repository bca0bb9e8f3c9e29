"""Denoisers of pictures that are transformers: Stable Diffusion 3 and FLUX.1."""

from __future__ import annotations

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, layer_count, width
from rung.models.networks.diffusion.common import TIME, added, attention, feed_forward, projection, shape_of
from rung.models.networks.parts import Parts
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


DESCRIPTIONS = (
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
