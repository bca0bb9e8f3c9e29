"""From a configuration, and the stored tensors where there are some, to a component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.text import count as counted
from rung.models import architectures
from rung.models.card import Tensor
from rung.models.files.tensors import FileTensor
from rung.models.networks import quantized
from rung.models.networks.default_sizes import working
from rung.models.networks.parts import Parts
from rung.models.networks.registry import DESCRIPTIONS
from rung.models.networks.roles import Roles, joined
from rung.models.networks.text import decoders
from rung.models.networks.values import Component, shape_of_decoder
from rung.models.settings import Settings

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def describe(config: Mapping[str, Any], where: str, name: str = "model") -> Component:
    """The component that a configuration describes, in its ``dtype`` (absent: f32); ``where`` names it in messages.

    Raises ``BadFile`` for values that cannot be, ``UnknownArchitecture`` for a type that nobody described.
    """
    settings = Settings(config, where)
    parts = Parts(where, _dtype(settings))
    found = _decoder(settings, parts, name) or _described(settings, parts, name)
    component = replace(found, tensors=quantized.stored(parts.all(), settings, found.role))
    if not component.tensors:
        raise BadFile(f"{where} describes a model without a tensor")
    return component


def kind_of(config: Settings) -> str:
    """``model_type``, or the class of a part of a diffusers pipeline. Raises ``BadFile`` where there is neither."""
    for key in ("model_type", "_class_name"):
        if key in config:
            return config.text(key)
    raise BadFile(f"{config.where} has neither a model_type nor a _class_name, so nothing says what it describes")


def known() -> list[str]:
    """The types that can be described."""
    return sorted([*decoders.model_types(), *DESCRIPTIONS])


def _decoder(top: Settings, parts: Parts, name: str) -> Component | None:
    """A decoder that ``rung run`` builds, or None."""
    kind, config, prefix = kind_of(top), top, "model."
    if kind == "gemma3":
        kind, config, prefix = "gemma3_text", Settings(top.table("text_config"), top.where), "model.language_model."
    if kind not in architectures.MODEL_TYPES:
        return None
    model = architectures.MODEL_TYPES[kind]
    decoder = decoders.decoder_of(model, top, config)
    decoders.describe(model, config, decoder, parts, prefix)
    return Component(name, kind, "decoder", (), shape_of_decoder(decoder), decoder)


def _described(config: Settings, parts: Parts, name: str) -> Component:
    kind = kind_of(config)
    if kind not in DESCRIPTIONS:
        raise UnknownArchitecture(
            f"{config.where} is of the type {kind[:60]!r}, whose tensors rung does not know",
            [f"known: {', '.join(known())}"],
            ["rung check MODEL --trace   # builds its module without weights, and counts"],
        )
    description = DESCRIPTIONS[kind]
    settings = description.settings(config)
    role = description.role if isinstance(description.role, str) else description.role(settings)
    if role == "decoder":
        decoders.check_measures(config)
    shape = working(kind, settings.values, description.describe(settings, parts))
    return Component(name, kind, role, (), shape)


def _dtype(config: Settings) -> str:
    """The format in which the configuration says that weights are stored."""
    table = config.raw("text_config")
    inner = table.get("dtype") or table.get("torch_dtype") if isinstance(table, Mapping) else None
    value = config.raw("dtype") or config.raw("torch_dtype") or inner or "float32"
    word = str(value).removeprefix("torch.")
    if word not in _DTYPES:
        raise config.bad("dtype", value, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[word]


def as_stored(component: Component, files: Sequence[Sequence[FileTensor]], where: str) -> Component:
    """The component with the tensors of its files instead of those that were described, which give them their roles.

    Raises ``BadFile`` where a described tensor is missing or has another shape: the two belong to different models.
    """
    roles, tensors = Roles(component), []
    for number, stored in enumerate(files):
        for item in joined(stored):
            role, shape = roles.take(item.name)
            if shape is not None and item.shape != shape:
                raise BadFile(
                    f"{where} contradicts its tensors: {item.name} has the shape {list(item.shape)}",
                    [f"its config.json says {list(shape)}"],
                )
            tensors.append(Tensor(role, item.name, item.shape, item.format, number, item.offset, item.bytes))
    if roles.missing:
        names = list(roles.missing)
        raise BadFile(
            f"{where} lacks {counted(len(names), 'tensor')} that its config.json asks for",
            [f"missing: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"],
            code="model-incomplete",
        )
    return replace(component, tensors=tuple(tensors))
