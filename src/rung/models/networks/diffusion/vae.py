"""The autoencoder of pictures: ``AutoencoderKL`` of Stable Diffusion, FLUX and Latte."""

from __future__ import annotations

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, texts, width, widths
from rung.models.networks.parts import Parts
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


DESCRIPTIONS = (
    Description(
        "AutoencoderKL",
        "autoencoder",
        _kl,
        {"in_channels": 3, "out_channels": 3, "block_out_channels": [64], "layers_per_block": 1, "latent_channels": 4}
        | {"down_block_types": ["DownEncoderBlock2D"], "up_block_types": ["UpDecoderBlock2D"]},
    ),
)
