"""Autoencoders of pictures (Stable Diffusion, FLUX, Latte) and of video (LTX-Video, Wan)."""

from __future__ import annotations

import itertools

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, Parts, texts, width, widths
from rung.models.networks.diffusion.common import TIME, projection
from rung.models.networks.values import Shape
from rung.models.settings import Settings


def _resnet(at: Parts, inner: int, outer: int) -> None:
    """Two convolutions with norms before them, and one past them where the width changes."""
    at.norm("norm1", inner)
    at.conv("conv1", inner, outer, 3, 3)
    at.norm("norm2", outer)
    at.conv("conv2", outer, outer, 3, 3)
    if inner != outer:
        at.conv("conv_shortcut", inner, outer, 1, 1)


def _attention(at: Parts, hidden: int) -> None:
    at.norm("group_norm", hidden)
    for name, role in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o")):
        at.linear(name, hidden, hidden, role=role)


def _middle(at: Parts, hidden: int, *, attends: bool) -> None:
    if attends:
        _attention(at / "attentions.0", hidden)
    for index in (0, 1):
        _resnet(at / f"resnets.{index}", hidden, hidden)


def _encoder(at: Parts, config: Settings, channels: list[int], *, attends: bool) -> None:
    """From pictures to twice as many numbers as a latent has: means and variances."""
    count, inner = config.integer("layers_per_block", most=64), channels[0]
    at.conv("conv_in", width(config, "in_channels"), inner, 3, 3)
    for depth, outer in enumerate(channels):
        block = at / f"down_blocks.{depth}"
        for index in range(count):
            _resnet(block / f"resnets.{index}", inner if index == 0 else outer, outer)
        if depth < len(channels) - 1:
            block.conv("downsamplers.0.conv", outer, outer, 3, 3)
        inner = outer
    _middle(at / "mid_block", inner, attends=attends)
    at.norm("conv_norm_out", inner)
    at.conv("conv_out", inner, 2 * width(config, "latent_channels"), 3, 3)


def _decoder(at: Parts, config: Settings, channels: list[int], *, attends: bool) -> None:
    channels = channels[::-1]
    count, inner = config.integer("layers_per_block", most=64) + 1, channels[0]
    at.conv("conv_in", width(config, "latent_channels"), inner, 3, 3)
    for depth, outer in enumerate(channels):
        block = at / f"up_blocks.{depth}"
        for index in range(count):
            _resnet(block / f"resnets.{index}", inner if index == 0 else outer, outer)
        if depth < len(channels) - 1:
            block.conv("upsamplers.0.conv", outer, outer, 3, 3)
        inner = outer
    _middle(at / "mid_block", channels[0], attends=attends)
    at.norm("conv_norm_out", inner)
    at.conv("conv_out", inner, width(config, "out_channels"), 3, 3)


def _refuse_others(config: Settings, key: str, kind: str) -> None:
    strangers = [name for name in texts(config, key) if name != kind]
    if strangers:
        raise UnknownArchitecture(f"{config.where} asks for the block {strangers[0][:60]!r}", [f"known: {kind}"])


def _kl(config: Settings, parts: Parts) -> Shape:
    channels, latent = widths(config, "block_out_channels"), width(config, "latent_channels")
    for key, kind in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        _refuse_others(config, key, kind)
        if len(texts(config, key)) != len(channels):
            raise config.bad(key, config.raw(key), f"a list of {len(channels)}")
    attends = config.flag("mid_block_add_attention", True)
    _encoder(parts / "encoder", config, channels, attends=attends)
    _decoder(parts / "decoder", config, channels, attends=attends)
    if config.flag("use_quant_conv", True):
        parts.conv("quant_conv", 2 * latent, 2 * latent, 1, 1)
    if config.flag("use_post_quant_conv", True):
        parts.conv("post_quant_conv", latent, latent, 1, 1)
    return Shape(layers=len(channels), hidden=channels[-1])


_OF_PICTURES = (
    Description(
        "AutoencoderKL",
        "autoencoder",
        _kl,
        {"in_channels": 3, "out_channels": 3, "block_out_channels": [64], "layers_per_block": 1, "latent_channels": 4}
        | {"down_block_types": ["DownEncoderBlock2D"], "up_block_types": ["UpDecoderBlock2D"]},
    ),
)


def _flags(config: Settings, key: str, count: int) -> list[bool]:
    found = config.raw(key)
    if not isinstance(found, list) or len(found) < count or not all(isinstance(value, bool) for value in found):
        raise config.bad(key, found, f"a list of {count} times true or false")
    return found


# ---- Wan


def _wan_norm(at: Parts, name: str, hidden: int, dims: int = 3) -> None:
    at.tensor(f"{name}.gamma", "norm", hidden, *(1,) * dims)


def _wan_resnet(at: Parts, inner: int, outer: int) -> None:
    _wan_norm(at, "norm1", inner)
    at.conv("conv1", inner, outer, 3, 3, 3)
    _wan_norm(at, "norm2", outer)
    at.conv("conv2", outer, outer, 3, 3, 3)
    if inner != outer:
        at.conv("conv_shortcut", inner, outer, 1, 1, 1)


def _wan_middle(at: Parts, hidden: int) -> None:
    attention = at / "attentions.0"
    _wan_norm(attention, "norm", hidden, 2)
    attention.conv("to_qkv", hidden, 3 * hidden, 1, 1)
    attention.conv("proj", hidden, hidden, 1, 1)
    for index in (0, 1):
        _wan_resnet(at / f"resnets.{index}", hidden, hidden)


def _wan_resample(at: Parts, inner: int, outer: int, over_time: int) -> None:
    """Halves or doubles the picture; ``over_time`` is how many times as many channels the step in time gives, or 0."""
    at.conv("resample.1", inner, outer, 3, 3)
    if over_time:
        at.conv("time_conv", inner, over_time * inner, 3, 1, 1)


def _wan_encoder(at: Parts, config: Settings, sizes: list[int], latent: int, residual: bool) -> None:
    count, times = config.integer("num_res_blocks", most=64), _flags(config, "temperal_downsample", len(sizes) - 2)
    at.conv("conv_in", width(config, "in_channels"), sizes[0], 3, 3, 3)
    number = 0
    for depth, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        for index in range(count):
            name = f"down_blocks.{depth}.resnets.{index}" if residual else f"down_blocks.{number + index}"
            _wan_resnet(at / name, inner if index == 0 else outer, outer)
        number += count
        if depth < len(sizes) - 2:
            name = f"down_blocks.{depth}.downsampler" if residual else f"down_blocks.{number}"
            _wan_resample(at / name, outer, outer, 1 if times[depth] else 0)
            number += 1
    _wan_middle(at / "mid_block", sizes[-1])
    _wan_norm(at, "norm_out", sizes[-1])
    at.conv("conv_out", sizes[-1], latent, 3, 3, 3)


def _wan_decoder(at: Parts, config: Settings, sizes: list[int], latent: int, residual: bool) -> None:
    """``sizes`` begin with the width of the middle, twice."""
    count, deep = config.integer("num_res_blocks", most=64), len(sizes) - 2
    times = _flags(config, "temperal_downsample", deep)[::-1]
    at.conv("conv_in", latent, sizes[0], 3, 3, 3)
    _wan_middle(at / "mid_block", sizes[0])
    for depth, (before, outer) in enumerate(itertools.pairwise(sizes)):
        inner = before // 2 if depth and not residual else before
        block = at / f"up_blocks.{depth}"
        for index in range(count + 1):
            _wan_resnet(block / f"resnets.{index}", inner if index == 0 else outer, outer)
        if depth < deep:
            name = "upsampler" if residual else "upsamplers.0"
            _wan_resample(block / name, outer, outer if residual else outer // 2, 2 if times[depth] else 0)
    _wan_norm(at, "norm_out", sizes[-1])
    at.conv("conv_out", sizes[-1], width(config, "out_channels"), 3, 3, 3)


def _wan(config: Settings, parts: Parts) -> Shape:
    if config.raw("attn_scales"):
        raise UnknownArchitecture(f"{config.where} describes a Wan autoencoder with attention between its blocks")
    base, latent, times = width(config, "base_dim"), width(config, "z_dim"), widths(config, "dim_mult")
    after, residual = width(config, "decoder_base_dim", base), config.flag("is_residual", False)
    _wan_encoder(parts / "encoder", config, [base * n for n in (1, *times)], 2 * latent, residual)
    parts.conv("quant_conv", 2 * latent, 2 * latent, 1, 1, 1)
    parts.conv("post_quant_conv", latent, latent, 1, 1, 1)
    _wan_decoder(parts / "decoder", config, [after * n for n in (times[-1], *times[::-1])], latent, residual)
    return Shape(layers=len(times), hidden=base * times[-1])


# ---- LTX-Video


def _ltx_resnet(at: Parts, inner: int, outer: int, *, noise: bool = False, timed: bool = False) -> None:
    """Its norms have no weights, but for the one before a change of width."""
    at.conv("conv1.conv", inner, outer, 3, 3, 3)
    at.conv("conv2.conv", outer, outer, 3, 3, 3)
    if inner != outer:
        at.norm("norm3", inner)
        at.conv("conv_shortcut.conv", inner, outer, 1, 1, 1)
    if noise:
        at.tensor("per_channel_scale1", "table", inner, 1, 1)
        at.tensor("per_channel_scale2", "table", inner, 1, 1)
    if timed:
        at.tensor("scale_shift_table", "table", 4, inner)


def _ltx_resnets(
    at: Parts, hidden: int, count: int, *, noise: bool = False, timed: bool = False, embedded: int = 0
) -> None:
    """Repeat a block; ``embedded``: the width that the embedding of time is made for, by default ``hidden``."""
    if timed:
        projection(at / "time_embedder.timestep_embedder", TIME, 4 * (embedded or hidden))
    for index in range(count):
        _ltx_resnet(at / f"resnets.{index}", hidden, hidden, noise=noise, timed=timed)


_FACTORS = {"spatial": 4, "temporal": 2, "spatiotemporal": 8}


def _ltx_encoder(at: Parts, config: Settings) -> None:
    channels, counts = widths(config, "block_out_channels"), widths(config, "layers_per_block")
    kinds, later = texts(config, "down_block_types"), texts(config, "down_block_types")[-1] == "LTXVideo095DownBlock3D"
    steps = len(channels) - later
    scales, ways = _flags(config, "spatio_temporal_scaling", steps), texts(config, "downsample_type")
    if len(kinds) < steps or len(counts) <= steps or len(ways) < steps or max(counts) > 64:
        raise config.bad("layers_per_block", counts, f"a list of {steps + 1} whole numbers up to 64")
    inner = channels[0]
    at.conv("conv_in.conv", width(config, "in_channels") * config.integer("patch_size") ** 2, inner, 3, 3, 3)
    for depth in range(steps):
        outer = channels[depth + 1] if later or depth + 1 < steps else channels[depth]
        block = at / f"down_blocks.{depth}"
        _ltx_resnets(block, inner, counts[depth])
        factor = _FACTORS.get(ways[depth], 0) if later else 0
        if scales[depth]:
            block.conv(
                "downsamplers.0.conv" + (".conv" if factor else ""),
                inner,
                outer // factor if factor else inner,
                3,
                3,
                3,
            )
        if not later and inner != outer:
            _ltx_resnet(block / "conv_out", inner, outer)
        inner = outer
    _ltx_resnets(at / "mid_block", inner, counts[-1])
    at.conv("conv_out.conv", inner, width(config, "latent_channels") + 1, 3, 3, 3)


def _ltx_decoder(at: Parts, config: Settings) -> None:
    channels = widths(config, "decoder_block_out_channels")[::-1]
    steps, counts = len(channels), widths(config, "decoder_layers_per_block")[::-1]
    scales = _flags(config, "decoder_spatio_temporal_scaling", steps)[::-1]
    noise = _flags(config, "decoder_inject_noise", steps)[::-1]
    factors, timed = widths(config, "upsample_factor", steps)[::-1], config.flag("timestep_conditioning", False)
    if len(counts) <= steps or len(noise) <= steps or max(counts) > 64:
        raise config.bad("decoder_layers_per_block", counts, f"a list of {steps + 1} whole numbers up to 64")
    inner = channels[0]
    at.conv("conv_in.conv", width(config, "latent_channels"), inner, 3, 3, 3)
    _ltx_resnets(at / "mid_block", inner, counts[0], noise=noise[0], timed=timed)
    for depth, wide in enumerate(channels):
        block, inner, outer = at / f"up_blocks.{depth}", inner // factors[depth], wide // factors[depth]
        if inner != outer:
            _ltx_resnet(block / "conv_in", inner, outer, noise=noise[depth + 1], timed=timed)
        if scales[depth]:
            block.conv("upsamplers.0.conv.conv", outer * factors[depth], 8 * outer, 3, 3, 3)
        _ltx_resnets(block, outer, counts[depth + 1], noise=noise[depth + 1], timed=timed, embedded=inner)
        inner = outer
    at.conv("conv_out.conv", inner, width(config, "out_channels") * config.integer("patch_size") ** 2, 3, 3, 3)
    if timed:
        at.tensor("timestep_scale_multiplier", "scalar", format="f32")
        projection(at / "time_embedder.timestep_embedder", TIME, 2 * inner)
        at.tensor("scale_shift_table", "table", 2, inner)


def _ltx(config: Settings, parts: Parts) -> Shape:
    for name in ("latents_mean", "latents_std"):
        parts.tensor(name, "table", width(config, "latent_channels"))
    _ltx_encoder(parts / "encoder", config)
    _ltx_decoder(parts / "decoder", config)
    channels = widths(config, "block_out_channels")
    return Shape(layers=len(channels), hidden=channels[-1])


_OF_VIDEO = (
    Description(
        "AutoencoderKLWan",
        "autoencoder",
        _wan,
        {"base_dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "in_channels": 3}
        | {"temperal_downsample": [False, True, True], "out_channels": 3},
    ),
    Description(
        "AutoencoderKLLTXVideo",
        "autoencoder",
        _ltx,
        {"in_channels": 3, "out_channels": 3, "latent_channels": 128, "block_out_channels": [128, 256, 512, 512]}
        | {"down_block_types": ["LTXVideoDownBlock3D"] * 4, "decoder_block_out_channels": [128, 256, 512, 512]}
        | {"layers_per_block": [4, 3, 3, 3, 4], "decoder_layers_per_block": [4, 3, 3, 3, 4]}
        | {"spatio_temporal_scaling": [True] * 3 + [False], "decoder_spatio_temporal_scaling": [True] * 3 + [False]}
        | {"decoder_inject_noise": [False] * 5, "downsample_type": ["conv"] * 4, "upsample_factor": [1] * 4}
        | {"patch_size": 4},
    ),
)

DESCRIPTIONS = (*_OF_PICTURES, *_OF_VIDEO)
