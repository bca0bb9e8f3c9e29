"""The architectures that rung builds, one file per model type; a new one is named here and nowhere else."""

from __future__ import annotations

from rung.core.registry import Registry
from rung.models.architectures import gemma, gemma2, gemma3_text, llama, mistral, phi3, qwen2, qwen3
from rung.models.architectures.family import Architecture, Factors

__all__ = ["GGUF", "MODEL_TYPES", "Architecture", "Factors"]

#: By the ``model_type`` of Hugging Face configurations.
MODEL_TYPES: Registry[Architecture] = Registry("model type")
#: By the ``general.architecture`` of GGUF files.
GGUF: Registry[Architecture] = Registry("GGUF architecture")

for _module in (gemma, gemma2, gemma3_text, llama, mistral, phi3, qwen2, qwen3):
    MODEL_TYPES.register(_module.ARCHITECTURE.model_type, _module.ARCHITECTURE)
    if _module.ARCHITECTURE.gguf:
        GGUF.register(_module.ARCHITECTURE.gguf, _module.ARCHITECTURE)
