"""Pipelines of diffusers: the components that ``model_index.json`` names, and the phases in which they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.networks.default_sizes import DECODED, MAKES
from rung.models.networks.values import Component, Outline, Phase

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
