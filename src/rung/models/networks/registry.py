"""The model types that can be described, one file per family; a new one is named here and nowhere else."""

from __future__ import annotations

from rung.core.registry import Registry
from rung.models.networks.describing import Description
from rung.models.networks.diffusion import pictures, unet, vae, video, video_vae
from rung.models.networks.encoders import bert, clip, t5, whisper
from rung.models.networks.text import deepseek, dense, experts, gemma, hybrid, mamba, sparse

__all__ = ["DESCRIPTIONS", "Description"]

#: By ``model_type`` (transformers) or ``_class_name`` (diffusers); beside these those of ``rung.models.architectures``.
DESCRIPTIONS: Registry[Description] = Registry("description")

for _module in (
    experts,
    deepseek,
    dense,
    sparse,
    hybrid,
    gemma,
    mamba,
    t5,
    bert,
    whisper,
    clip,
    unet,
    pictures,
    video,
    vae,
    video_vae,
):
    for _description in _module.DESCRIPTIONS:
        DESCRIPTIONS.register(_description.model_type, _description)
