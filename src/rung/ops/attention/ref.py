"""Attention in plain torch, one step after the other: the specification of the other rungs."""

from __future__ import annotations

import torch
from torch import Tensor


def visible(queries: int, keys: int, start: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys each query sees: bool [queries, keys]."""
    position = torch.arange(start, start + queries, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    mask = key <= position
    return mask if window is None else mask & (key > position - window)


class Reference:
    """See ``rung.ops.attention``; computes in the dtype of ``q``."""

    def apply(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """[T, H, D] from q [T, H, D] and keys, values [S, KV, D]."""
        group = q.shape[1] // keys.shape[1]
        k = keys.to(q.dtype).repeat_interleave(group, dim=1)
        v = values.to(q.dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", q, k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        mask = visible(q.shape[0], keys.shape[0], start, window, q.device)
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        return torch.einsum("hts,shd->thd", weights, v)


RUNG = Reference()
