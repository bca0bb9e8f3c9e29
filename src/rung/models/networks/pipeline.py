"""Pipelines of diffusers: their components, the phases in which these are needed, and sizes that are usual."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile
from rung.core.value import Value
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.networks.values import Component, Outline, Phase, Shape


@dataclass(frozen=True)
class Usual(Value):
    """Latents of ``frames`` x ``height`` x ``width`` (of FLUX patches of two by two), a prompt of ``text`` tokens.

    ``inputs`` go through at once: two in a denoiser under classifier-free guidance, with the prompt and without.
    """

    height: int
    width: int
    frames: int = 1
    text: int = 77
    inputs: int = 1


_USUAL = {
    "UNet2DConditionModel": Usual(64, 64, inputs=2),
    "SD3Transformer2DModel": Usual(128, 128, text=77 + 256, inputs=2),
    "FluxTransformer2DModel": Usual(64, 64, text=512),
    "LTXVideoTransformer3DModel": Usual(16, 22, frames=21, text=128, inputs=2),
    "WanTransformer3DModel": Usual(60, 104, frames=21, text=512),
    "LatteTransformer3DModel": Usual(64, 64, frames=16, text=120, inputs=2),
    "AutoencoderKLLTXVideo": Usual(16, 22, frames=21),
    "AutoencoderKLWan": Usual(60, 104, frames=21),
}
_OTHER = Usual(64, 64, frames=16, text=256)
#: Wan 2.2's smaller model makes latents of every 16th pixel instead of every 8th, with so many channels.
_COARSE = 48
#: Frames that a pipeline decodes at once with an autoencoder of pictures.
DECODED = {"LattePipeline": 14}
#: What pipelines make of a text alone.
MAKES = {
    **dict.fromkeys(("LattePipeline", "LTXPipeline", "WanPipeline"), "video"),
    **dict.fromkeys(("StableDiffusionPipeline", "StableDiffusionXLPipeline"), "image"),
    **dict.fromkeys(("StableDiffusion3Pipeline", "FluxPipeline"), "image"),
}


def usual(name: str, config: Mapping[str, Any]) -> Usual:
    """The sizes for a class of diffusers with that configuration: its own ``sample_size``, ``video_length`` first."""
    found = _USUAL.get(name, _OTHER)
    side, frames = config.get("sample_size"), config.get("video_length", config.get("sample_frames"))
    pair: tuple[Any, Any] = (side[0], side[1]) if isinstance(side, (list, tuple)) and len(side) == 2 else (side, side)
    height, width = pair
    if _size(height) and _size(width):
        scale = _doublings(config) if name.startswith("Autoencoder") else 1
        found = replace(found, height=max(height // scale, 1), width=max(width // scale, 1))
    if _size(frames):
        found = replace(found, frames=frames)
    if _COARSE in (config.get("in_channels"), config.get("z_dim")):
        found = replace(found, height=found.height // 2, width=found.width // 2)
    return found


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**16


def _doublings(config: Mapping[str, Any]) -> int:
    return int(2 ** (len(config.get("block_out_channels") or [0]) - 1))


def working(name: str, config: Mapping[str, Any], shape: Shape) -> Shape:
    """The shape with the numbers alive at once for one usual input, and the inputs at once; as it is for other classes.

    ``config`` is checked and has the defaults of its class: what describes the tensors has read it before.
    """
    sizes, in_f32 = usual(name, config), 0
    if name == "UNet2DConditionModel":
        alive = _unet(config, sizes)
    elif name == "AutoencoderKL":
        alive = _pictures(config, sizes)
    elif name == "AutoencoderKLLTXVideo":
        alive = _ltx(config, sizes)
    elif name == "AutoencoderKLWan":
        alive = _wan(config, sizes)
    elif name in _PER_TOKEN:
        tokens = sizes.frames * sizes.height * sizes.width // _patch(config.get("patch_size"))
        joint, hidden, wide = _PER_TOKEN[name]
        twice = bool(config.get("dual_attention_layers"))  # pictures attend among themselves too, and wait meanwhile
        together = tokens + (sizes.text if joint else 0)  # text has its own feed-forward part, after the pictures'
        widened = together * (wide + twice) * shape.hidden + 2 * tokens * shape.feed_forward
        alive = round(max(together * hidden * shape.hidden, widened))
        in_f32 = 2 * together * shape.hidden if name in _ROTATE else 0
    else:
        return shape
    scale = _doublings(config)
    pixels = 3 * sizes.height * sizes.width * scale**2 if name == "AutoencoderKL" else 0
    return replace(shape, alive=alive, in_f32=in_f32, inputs=sizes.inputs, outputs=pixels)


#: Of denoisers that are transformers: whether text goes through the blocks too, and hidden states a token in attention,
#: and in the feed-forward part beside what goes in and out of its activation.
_PER_TOKEN = {
    "SD3Transformer2DModel": (True, 0.0, 4.85),
    "FluxTransformer2DModel": (True, 17.2, 0.0),
    "LTXVideoTransformer3DModel": (False, 16.0, 0.0),
    "WanTransformer3DModel": (False, 11.1, 4.2),
    "LatteTransformer3DModel": (False, 0.0, 4.9),
}
#: Those that rotate queries in f32 in any dtype: two hidden states a token are f32 then, the products of
#: ``apply_rotary_emb`` in diffusers.
_ROTATE = ("FluxTransformer2DModel", "LTXVideoTransformer3DModel")


def _patch(value: Any) -> int:
    """Latents of a token; 1 for what no class reads."""
    sides = value if isinstance(value, (list, tuple)) and len(value) == 3 else (1, value, value)
    return math.prod(sides) if all(_size(side) for side in sides) else 1


def _unet(config: Mapping[str, Any], sizes: Usual) -> int:
    """The feed-forward part of the first attention at some depth (twice four times its width, the activation, their
    product and what lies around: 24 in all) over what waits for the way up."""
    most, waiting, pixels = 0, config["block_out_channels"][0] * sizes.height * sizes.width, sizes.height * sizes.width
    for channels, kind in zip(config["block_out_channels"], config["down_block_types"], strict=True):
        waiting += pixels * channels
        if "Attn" in kind:
            most = max(most, waiting + 24 * channels * pixels)
        waiting += pixels * channels * (config["layers_per_block"] - 1) + pixels * channels // 4
        pixels //= 4
    return most


def _pictures(config: Mapping[str, Any], sizes: Usual) -> int:
    """The last block, at full size, begins with the channels of the one before: its input, the norm, the activation."""
    channels, scale = config["block_out_channels"], _doublings(config)
    return int(3 * channels[min(1, len(channels) - 1)] * sizes.height * sizes.width * scale**2)


def _ltx(config: Mapping[str, Any], sizes: Usual) -> int:
    """All frames at once. At full size, before patches become pixels."""
    channels, factors = config["decoder_block_out_channels"], config["upsample_factor"]
    steps = sum(config["decoder_spatio_temporal_scaling"])
    cells = (2**steps * (sizes.frames - 1) + 1) * 4**steps * sizes.height * sizes.width
    result: int = round(6.25 * channels[0] // factors[0] * cells)
    return result


def _wan(config: Mapping[str, Any], sizes: Usual) -> int:
    """A frame of the latent at a time, which is four of the picture, beside the frames that are done."""
    base = config.get("decoder_base_dim") or config["base_dim"]
    depth, times = len(config["dim_mult"]) - 1, sum(config["temperal_downsample"])
    cells = 4**depth * sizes.height * sizes.width
    done = math.prod((cells, config["out_channels"], 2**times * (sizes.frames - 1) + 1))
    factor = 21.0 if config.get("is_residual") else 13.2
    result: int = round(done + 2**times * cells * factor * base * config["dim_mult"][0])
    return result


INDEX = "model_index.json"
_MOST_COMPONENTS = 32
#: Components without weights, by the beginning of their names or of what they are.
_WEIGHTLESS = ("scheduler", "tokenizer", "feature_extractor", "image_processor", "processor", "video_processor")
#: What each component is for. Whatever is none of these encodes the prompt.
_DENOISERS = ("unet", "transformer", "prior", "controlnet", "adapter")
_DECODERS = ("vae", "vqvae", "movq", "safety_checker", "watermark", "vocoder")


def is_pipeline(folder: Path) -> bool:
    """Return whether a folder holds a pipeline."""
    return (folder / INDEX).is_file()


def pipeline(folder: Path, name: str, part: Callable[[Path, str], Component]) -> Outline:
    """The outline of a pipeline; ``part(folder, where)`` gives the component in a folder of its own.

    Phases: ``encode`` (text and pictures to context), ``denoise`` and ``decode`` (latents to pictures): what encodes
    can be dropped before the denoiser is needed. Raises ``BadFile`` where a component is missing.
    """
    index = read_object(folder / INDEX, SMALL)
    named = components(index, f"{name}/{INDEX}")
    missing = [one for one in named if not (folder / one / "config.json").is_file()]
    if missing:
        raise BadFile(
            f"{name} lacks {', '.join(missing)}", [f"{INDEX} names {', '.join(named)}"], code="model-incomplete"
        )
    found = tuple(_used(index, replace(part(folder / one, f"{name}/{one}"), name=one)) for one in named)
    makes = MAKES.get(str(index.get("_class_name")), "")
    return Outline(name, "pipeline", str(folder), found, phases_of(named), makes=makes)


def _used(index: Mapping[str, Any], component: Component) -> Component:
    """The component as that pipeline uses it: some decode several frames at once."""
    kind = str(index.get("_class_name", ""))
    if component.role != "autoencoder":
        return component
    return replace(component, shape=replace(component.shape, inputs=DECODED.get(kind, 1)))


def components(index: Mapping[str, Any], where: str) -> list[str]:
    """The names of the components that have weights. Raises ``BadFile``."""
    found = []
    for name, entry in index.items():
        if name.startswith("_") or not isinstance(entry, list):
            continue
        if len(entry) != 2:
            raise BadFile(f"{where}: {name[:60]} is {str(entry)[:60]}, not a library and a class")
        if entry[1] is None or name.startswith(_WEIGHTLESS):
            continue
        if set(name) & set("/\\\0") or name in (".", "..", ""):
            raise BadFile(f"{where} names a component {name[:60]!r}, which is no name of a folder")
        found.append(name)
    if not 0 < len(found) <= _MOST_COMPONENTS:
        raise BadFile(f"{where} names {len(found)} components with weights", [f"rung reads up to {_MOST_COMPONENTS}"])
    return found


def phases_of(names: list[str]) -> tuple[Phase, ...]:
    """The phases in order, those that have a component; each names what must be resident together."""
    denoise = tuple(name for name in names if name.startswith(_DENOISERS))
    decode = tuple(name for name in names if name.startswith(_DECODERS))
    encode = tuple(name for name in names if name not in (*denoise, *decode))
    phases = (Phase("encode", encode), Phase("denoise", denoise), Phase("decode", decode))
    return tuple(phase for phase in phases if phase.components)
