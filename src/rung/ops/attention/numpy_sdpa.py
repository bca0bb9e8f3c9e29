"""Attention in NumPy, where torch is not installed; computes in the dtype of the queries."""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Floats


def visible(queries: int, keys: int, start: int, window: int | None) -> np.ndarray:
    """Return which keys each query sees: bool [queries, keys]."""
    position, key = np.arange(start, start + queries)[:, None], np.arange(keys)[None, :]
    mask: np.ndarray = key <= position
    return mask if window is None else mask & (key > position - window)


class Sdpa:
    """See ``rung.ops.attention``; one key head with its queries at a time, which bounds the memory."""

    def attend(
        self,
        q: Floats,
        keys: Floats,
        values: Floats,
        *,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Floats:
        """[T, H, D] from q [T, H, D] and keys, values [S, KV, D]."""
        group = q.shape[1] // keys.shape[1]
        unseen = ~visible(len(q), len(keys), start, window)
        out = np.empty_like(q)
        for head in range(keys.shape[1]):
            mine = q[:, head * group : (head + 1) * group].swapaxes(0, 1)
            scores = mine @ (keys[:, head].astype(q.dtype).T * q.dtype.type(scale))
            if softcap is not None:
                scores = np.tanh(scores / q.dtype.type(softcap)) * q.dtype.type(softcap)
            scores[:, unseen] = -np.inf
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            out[:, head * group : (head + 1) * group] = (scores @ values[:, head].astype(q.dtype)).swapaxes(0, 1)
        return out


RUNG = Sdpa()
