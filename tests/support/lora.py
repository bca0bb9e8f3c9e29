"""A LoRA in a folder, as PEFT writes it, for the model of the demo."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import rung


def write_lora(folder: Path, rank: int = 2, seed: int = 0, layers: Iterable[int] = (0,)) -> Path:
    """Write random changes of the query projections of some layers of the demo; return the folder."""
    from safetensors.numpy import save_file

    card, chance = rung.load("demo", device="cpu").card, np.random.default_rng(seed)
    rows, columns = card.tensor("layers.0.q").shape
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_" for layer in layers]
    parts = {"A": (rank, columns), "B": (rows, rank)}
    tensors = {
        f"{name}{part}.weight": chance.normal(0, 0.3, shape).astype(np.float32)
        for name in names
        for part, shape in parts.items()
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
