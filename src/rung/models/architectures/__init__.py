"""The architectures that rung builds, one file per model type, found by folder.

Plug-ins add theirs through entry points of the group ``rung.architectures``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from rung.core.plugins import Plugin
from rung.core.registry import Registry, module_names
from rung.models.architectures.family import Architecture, Factors
from rung.models.architectures.guarded import guarded

__all__ = ["GGUF", "MODEL_TYPES", "Architecture", "Factors"]

_GROUP = "rung.architectures"


def _by_type(plugin: Plugin, value: Any) -> Mapping[str, Architecture]:
    made = guarded(plugin, value, MODEL_TYPES.own, GGUF.own)
    return {made.model_type: made}


def _by_gguf(plugin: Plugin, value: Any) -> Mapping[str, Architecture]:
    made = guarded(plugin, value, MODEL_TYPES.own, GGUF.own)
    return {made.gguf: made} if made.gguf else {}


#: By the ``model_type`` of Hugging Face configurations.
MODEL_TYPES: Registry[Architecture] = Registry("model type", _GROUP, _by_type)
#: By the ``general.architecture`` of GGUF files.
GGUF: Registry[Architecture] = Registry("GGUF architecture", _GROUP, _by_gguf)


def _found() -> Iterator[Architecture]:
    """Yield ``ARCHITECTURE`` of each module of this folder that has one, by name."""
    for name in module_names(__path__):
        architecture = getattr(importlib.import_module(f"{__name__}.{name}"), "ARCHITECTURE", None)
        if architecture is not None:
            yield architecture


for _architecture in _found():
    MODEL_TYPES.register(_architecture.model_type, _architecture)
    if _architecture.gguf:
        GGUF.register(_architecture.gguf, _architecture)
