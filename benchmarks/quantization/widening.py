"""Widen a Llama of transformers, so that blocks of 256 divide its rows, without changing much of what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: How large new weights are that write to the old dimensions or to new ones, beside the others of their matrix: small
#: enough that the answers stay, and large enough that a format must hold them.
QUIET = 0.1


def widened(model: Any, hidden: int, seed: int) -> Any:
    """Return a model with ``hidden`` dimensions and as many more heads, in f32.

    New dimensions lie between the old ones, so that each block has some of both. Their readers are random, and their
    writers small; so are the outputs of new heads. Norms and their epsilon are scaled for a mean over more dimensions.
    """
    old = model.config
    factor = hidden / old.hidden_size
    changes = {
        "hidden_size": hidden,
        "num_attention_heads": round(old.num_attention_heads * factor),
        "num_key_value_heads": round(old.num_key_value_heads * factor),
        "head_dim": model.model.layers[0].self_attn.head_dim,
        "rms_norm_eps": old.rms_norm_eps / factor,
    }
    config = type(old)(**{**old.to_dict(), **changes})
    wide = type(model)(config)
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(hidden, generator=generator)[: old.hidden_size].sort().values
    before = dict(model.named_parameters())
    for name, parameter in wide.named_parameters():
        kind = name.rsplit(".", 2)[-2]
        parameter.data = _norm(before[name], places, factor, hidden) if parameter.dim() == 1 else _matrix(
            before[name].data, tuple(parameter.shape), kind, places, generator
        )  # fmt: skip
    wide.tie_weights()
    return wide


def _norm(weight: Tensor, places: Tensor, factor: float, hidden: int) -> Tensor:
    found = torch.full((hidden,), float(weight.data.abs().median()))
    found[places] = weight.data
    return found / factor**0.5


def _matrix(weight: Tensor, shape: tuple[int, ...], kind: str, places: Tensor, generator: torch.Generator) -> Tensor:
    """Return a matrix of the new shape with the old one in its place: ``places`` of the hidden dimensions, and the
    first of the heads."""
    rows, columns = (torch.arange(size) for size in weight.shape)
    if kind in ("o_proj", "down_proj"):
        rows = places
    else:
        columns = places
    quiet = QUIET if kind in ("o_proj", "down_proj", "embed_tokens") else 1.0
    found = torch.randn(shape, generator=generator) * weight.std() * quiet
    found[rows[:, None], columns] = weight
    return found
