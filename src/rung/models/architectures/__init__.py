"""The architectures that rung builds, one file per model type, found by folder.

Plug-ins add theirs through entry points of the group ``rung.architectures``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from rung.core.plugins import Plugin
from rung.core.registry import Registry, module_names
from rung.models.architectures.encoders import EncoderArchitecture
from rung.models.architectures.family import Architecture, Factors
from rung.models.architectures.guarded import guarded

__all__ = ["ENCODERS", "GGUF", "MODEL_TYPES", "Architecture", "EncoderArchitecture", "Factors"]

_GROUP = "rung.architectures"


def _by_type(plugin: Plugin, value: Any) -> Mapping[str, Architecture]:
    added = guarded(plugin, value, MODEL_TYPES.own, GGUF.own)
    return {added.model_type: added}


def _by_gguf(plugin: Plugin, value: Any) -> Mapping[str, Architecture]:
    added = guarded(plugin, value, MODEL_TYPES.own, GGUF.own)
    return {added.gguf: added} if added.gguf else {}


#: By the ``model_type`` of Hugging Face configurations.
MODEL_TYPES: Registry[Architecture] = Registry("model type", _GROUP, _by_type)
#: By the ``general.architecture`` of GGUF files.
GGUF: Registry[Architecture] = Registry("GGUF architecture", _GROUP, _by_gguf)


#: Encoders by the ``model_type`` of Hugging Face configurations.
ENCODERS: dict[str, EncoderArchitecture] = {}


def _found(attribute: str) -> Iterator[Any]:
    """Yield that attribute of each module of this folder that has it, by name."""
    for name in module_names(__path__):
        found = getattr(importlib.import_module(f"{__name__}.{name}"), attribute, None)
        if found is not None:
            yield found


ENCODERS.update((encoder.model_type, encoder) for encoder in _found("ENCODER"))
for _architecture in _found("ARCHITECTURE"):
    MODEL_TYPES.register(_architecture.model_type, _architecture)
    if _architecture.gguf:
        GGUF.register(_architecture.gguf, _architecture)
