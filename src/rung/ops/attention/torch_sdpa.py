"""Attention through torch's own kernel; a soft cap, which that has not, by matrix products per key head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def hidden(queries: int, keys: int, start: int, window: int | None, like: Tensor) -> Tensor | None:
    """The additive mask [queries, keys] (0 or -inf), or None when every query sees every key."""
    first = start + queries - keys  # the position of keys[0]; keys before a window may be cut off
    assert first == 0 or window is not None
    if queries == 1 and (window is None or keys <= window):
        return None
    mask = torch.zeros(queries, keys, dtype=like.dtype, device=like.device)
    rows = torch.arange(queries, device=like.device)[:, None] + start - first
    columns = torch.arange(keys, device=like.device)[None, :]
    unseen = columns > rows
    if window is not None:
        unseen |= columns <= rows - window
    return mask.masked_fill_(unseen, float("-inf"))


class Sdpa:
    """See ``rung.ops.attention``; the cache is converted to the dtype of ``q`` for the keys that are seen."""

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
        if window is not None:
            unseen = max(0, start + 1 - window)
            keys, values = keys[unseen:], values[unseen:]
        k = keys.to(q.dtype).transpose(0, 1)
        v = values.to(q.dtype).transpose(0, 1)
        if softcap is not None:
            mask = hidden(q.shape[0], k.shape[1], start, window, q)
            return _capped(q, k, v, scale, softcap, mask)
        whole = start == 0 and q.shape[0] > 1 and (window is None or q.shape[0] <= window)
        mask = None if whole else hidden(q.shape[0], k.shape[1], start, window, q)
        out = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=whole,
            scale=scale,
            enable_gqa=q.shape[1] != keys.shape[1],
        )
        return out[0].transpose(0, 1)


def _capped(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float, mask: Tensor | None) -> Tensor:
    """The same with capped scores; one key head with its queries at a time, which bounds the memory."""
    heads = q.shape[1]
    group = heads // k.shape[0]
    out = torch.empty_like(q)
    for head in range(k.shape[0]):
        mine = q[:, head * group : (head + 1) * group].transpose(0, 1)
        scores = torch.matmul(mine, k[head].T).mul_(scale / softcap).tanh_().mul_(softcap)
        if mask is not None:
            scores += mask
        weights = torch.softmax(scores, dim=-1)
        out[:, head * group : (head + 1) * group] = torch.matmul(weights, v[head]).transpose(0, 1)
    return out


RUNG = Sdpa()
