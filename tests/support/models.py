"""Helpers for models of transformers: their logits, from a folder, with an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def logits_of(model: Any, ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Return the logits of a model in evaluation, as it computes them: [rows, tokens, vocabulary].

    ``ids`` is [rows, tokens], or the ids of one row, of which the result has no rows.
    """
    inputs = ids if isinstance(ids, torch.Tensor) else torch.tensor([ids])
    with torch.no_grad():
        found: torch.Tensor = model.eval()(inputs).logits
    return found if isinstance(ids, torch.Tensor) else found[0]


def read_weight(layer: Any) -> torch.Tensor:
    """Return the weight [outputs, inputs] of a layer without bias through its forward."""
    with torch.no_grad():
        found: torch.Tensor = layer(torch.eye(layer.in_features)).T
    return found


def load_causal(folder: str | Path, **options: Any) -> Any:
    """Load a language model in f32 and evaluation; no parameter may have stayed without values."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, **{"dtype": torch.float32, **options}).eval()
    assert not [name for name, part in model.state_dict().items() if part.is_meta]
    return model
