"""The architectures that rung builds, one file per model type; a new one is named here and nowhere else.

Plug-ins add theirs through entry points of the group ``rung.architectures``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rung.core.plugins import Plugin
from rung.core.registry import Registry
from rung.models.architectures import gemma, gemma2, gemma3_text, llama, mistral, phi3, qwen2, qwen3
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

for _module in (gemma, gemma2, gemma3_text, llama, mistral, phi3, qwen2, qwen3):
    MODEL_TYPES.register(_module.ARCHITECTURE.model_type, _module.ARCHITECTURE)
    if _module.ARCHITECTURE.gguf:
        GGUF.register(_module.ARCHITECTURE.gguf, _module.ARCHITECTURE)
