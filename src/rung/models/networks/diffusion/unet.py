"""The U-Net of Stable Diffusion 1, 2 and XL: convolutions down and up again, with attention to the text in between."""

from __future__ import annotations

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, Parts, texts, width, widths
from rung.models.networks.diffusion.common import attention, feed_forward, projection
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_DEFAULTS = {
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    "block_out_channels": [320, 640, 1280, 1280],
    "layers_per_block": 2,
    "cross_attention_dim": 1280,
    "transformer_layers_per_block": 1,
    "attention_head_dim": 8,
    "use_linear_projection": False,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
}
#: Keys of other U-Nets, by what they must be here.
_PLAIN = {
    "encoder_hid_dim": None,
    "encoder_hid_dim_type": None,
    "num_attention_heads": None,
    "time_embedding_dim": None,
    "class_embed_type": None,
    "num_class_embeds": None,
    "time_cond_proj_dim": None,
    "dual_cross_attention": False,
    "attention_type": "default",
    "only_cross_attention": False,
    "resnet_time_scale_shift": "default",
    "time_embedding_type": "positional",
    "cross_attention_norm": None,
    "mid_block_only_cross_attention": None,
    "reverse_transformer_layers_per_block": None,
    "class_embeddings_concat": False,
}


class _UNet:
    """The measures that blocks at every depth share."""

    def __init__(self, config: Settings) -> None:
        self.channels = widths(config, "block_out_channels")
        self.per_block = config.integer("layers_per_block", most=64)
        self.text = width(config, "cross_attention_dim")
        self.linear = config.flag("use_linear_projection", False)
        self.time = 4 * self.channels[0]
        self.deep = self._depths(config)

    def _depths(self, config: Settings) -> list[int]:
        """Transformer layers of one attention, at each depth."""
        if isinstance(config.raw("transformer_layers_per_block"), int):
            return [config.integer("transformer_layers_per_block", most=64)] * len(self.channels)
        found = widths(config, "transformer_layers_per_block", len(self.channels), len(self.channels))
        if max(found) > 64:
            raise config.bad("transformer_layers_per_block", found, "whole numbers up to 64")
        return found

    def resnet(self, at: Parts, inner: int, outer: int) -> None:
        """Two convolutions, with the time added between them."""
        at.norm("norm1", inner)
        at.conv("conv1", inner, outer, 3, 3)
        at.linear("time_emb_proj", self.time, outer)
        at.norm("norm2", outer)
        at.conv("conv2", outer, outer, 3, 3)
        if inner != outer:
            at.conv("conv_shortcut", inner, outer, 1, 1)

    def attend(self, at: Parts, hidden: int, layers: int) -> None:
        """``Transformer2DModel``: attention to the picture itself and to the text."""
        at.norm("norm", hidden)
        for name in ("proj_in", "proj_out"):
            if self.linear:
                at.linear(name, hidden, hidden)
            else:
                at.conv(name, hidden, hidden, 1, 1)
        for index in range(layers):
            block = at / f"transformer_blocks.{index}"
            block.norm("norm1", hidden)
            attention(block / "attn1", hidden, bias=False)
            block.norm("norm2", hidden)
            attention(block / "attn2", hidden, context=self.text, bias=False)
            block.norm("norm3", hidden)
            feed_forward(block / "ff", hidden, 4 * hidden, gated=True)


def _check_heads(config: Settings) -> None:
    """Raise ``BadFile`` unless ``attention_head_dim``, the number of heads here, divides the widths of blocks."""
    channels = widths(config, "block_out_channels")
    if isinstance(config.raw("attention_head_dim"), list):
        heads = widths(config, "attention_head_dim", len(channels), len(channels))
    else:
        heads = [width(config, "attention_head_dim")] * len(channels)
    if any(hidden % count for hidden, count in zip(channels, heads, strict=True)):
        raise config.bad("attention_head_dim", heads, "numbers of heads that divide the widths of blocks")


def _refuse_others(config: Settings) -> None:
    for key, value in _PLAIN.items():
        if config.raw(key, value) not in (value, None):
            raise UnknownArchitecture(
                f"{config.where} describes a U-Net with {key} {str(config.raw(key))[:40]}",
                ["rung knows those of Stable Diffusion 1, 2 and XL"],
            )
    _check_heads(config)
    if config.raw("addition_embed_type") not in (None, "text_time"):
        raise UnknownArchitecture(f"{config.where} asks for {str(config.raw('addition_embed_type'))[:40]!r} embeddings")


def _kinds(config: Settings, key: str, attending: str, plain: str, count: int) -> list[bool]:
    """Return whether the block at each depth attends to the text."""
    found = texts(config, key)
    if len(found) != count:
        raise config.bad(key, found, f"a list of {count}")
    strangers = [kind for kind in found if kind not in (attending, plain)]
    if strangers:
        raise UnknownArchitecture(f"{config.where} asks for the block {strangers[0][:60]!r}")
    return [kind == attending for kind in found]


def _down(unet: _UNet, parts: Parts, attends: list[bool]) -> None:
    inner = unet.channels[0]
    for depth, outer in enumerate(unet.channels):
        block = parts / f"down_blocks.{depth}"
        for index in range(unet.per_block):
            unet.resnet(block / f"resnets.{index}", inner if index == 0 else outer, outer)
            if attends[depth]:
                unet.attend(block / f"attentions.{index}", outer, unet.deep[depth])
        if depth < len(unet.channels) - 1:
            block.conv("downsamplers.0.conv", outer, outer, 3, 3)
        inner = outer


def _up(unet: _UNet, parts: Parts, attends: list[bool]) -> None:
    """Each block takes the results of the way down beside its own."""
    channels, deep = unet.channels[::-1], unet.deep[::-1]
    before = channels[0]
    for depth, outer in enumerate(channels):
        block, across = parts / f"up_blocks.{depth}", channels[min(depth + 1, len(channels) - 1)]
        for index in range(unet.per_block + 1):
            skip = across if index == unet.per_block else outer
            unet.resnet(block / f"resnets.{index}", (before if index == 0 else outer) + skip, outer)
            if attends[depth]:
                unet.attend(block / f"attentions.{index}", outer, deep[depth])
        if depth < len(channels) - 1:
            block.conv("upsamplers.0.conv", outer, outer, 3, 3)
        before = outer


def _unet(config: Settings, parts: Parts) -> Shape:
    _refuse_others(config)
    unet = _UNet(config)
    first, last, depths = unet.channels[0], unet.channels[-1], len(unet.channels)
    down = _kinds(config, "down_block_types", "CrossAttnDownBlock2D", "DownBlock2D", depths)
    up = _kinds(config, "up_block_types", "CrossAttnUpBlock2D", "UpBlock2D", depths)
    if config.raw("mid_block_type") != "UNetMidBlock2DCrossAttn":
        raise UnknownArchitecture(f"{config.where} asks for the block {str(config.raw('mid_block_type'))[:60]!r}")
    kernel, out = config.integer("conv_in_kernel", most=64), config.integer("conv_out_kernel", most=64)
    parts.conv("conv_in", width(config, "in_channels"), first, kernel, kernel)
    projection(parts / "time_embedding", first, unet.time)
    if config.raw("addition_embed_type"):
        projection(parts / "add_embedding", width(config, "projection_class_embeddings_input_dim"), unet.time)
    _down(unet, parts, down)
    _up(unet, parts, up)
    for index in (0, 1):
        unet.resnet(parts / f"mid_block.resnets.{index}", last, last)
    unet.attend(parts / "mid_block.attentions.0", last, unet.deep[-1])
    parts.norm("conv_norm_out", first)
    parts.conv("conv_out", first, width(config, "out_channels"), out, out)
    return Shape(layers=depths, hidden=last, feed_forward=4 * last)


DESCRIPTIONS = (Description("UNet2DConditionModel", "denoiser", _unet, _DEFAULTS),)
