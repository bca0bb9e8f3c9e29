"""Sampling in torch, step by step: the specification of the other rungs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rung.formats.codec import Floats
from rung.kernels.cpu.sample.record import MASS
from rung.ops.token_choice import Chosen, Row, chosen


class Reference:
    """See ``rung.ops.sample``; there is no state."""

    def prepare(self, *, threads: int) -> None:
        """Keep nothing."""

    def apply(self, state: None, logits: Floats, rows: Sequence[Row]) -> list[Chosen]:
        """f32 [rows, vocabulary] -> what is chosen of each."""
        return [_choose(values, row) for values, row in zip(logits, rows, strict=True)]


def _choose(logits: Floats, row: Row) -> Chosen:
    values = torch.from_numpy(np.ascontiguousarray(logits))
    if not math.isfinite(values.max()) or bool(values.isnan().any()):
        return Chosen(error="not-numbers")
    changed = _changed(values, row)
    if changed.max() == -math.inf:
        return Chosen(error="nothing-allowed")
    if not math.isfinite(changed.max()):
        return Chosen(error="not-numbers")
    token = int(changed.argmax()) if not row.inverse else _draw(changed.double(), row)
    if row.top_logprobs is None:
        return Chosen(token)
    order = values.sort(descending=True, stable=True).indices[: row.top_logprobs]
    likely = order[values[order] > -math.inf].tolist()
    return chosen(logits, token, float(values.max()), int(_masses(values.double(), 1.0).sum()), likely)


def _changed(values: Tensor, row: Row) -> Tensor:
    out = values.clone()
    ids, bias = torch.from_numpy(row.bias_ids).long(), torch.from_numpy(row.bias)
    known = (ids >= 0) & (ids < len(out))
    out[ids[known]] += bias[known]
    counted, counts = torch.from_numpy(row.previous).long(), torch.from_numpy(row.counts)
    known = (counted >= 0) & (counted < len(out))
    counted, counts, penalty = counted[known], counts[known], torch.tensor(row.repeat_penalty)
    score = torch.where(out[counted] < 0, out[counted] * penalty, out[counted] / penalty).double()
    less = counts * row.frequency_penalty + (counts > 0) * row.presence_penalty
    out[counted] = (score - less.double()).float()
    if row.mask is not None:
        bits = np.unpackbits(row.mask.view(np.uint8), count=len(out), bitorder="little")
        out[torch.from_numpy(bits) == 0] = -math.inf
    return out


def _masses(values: Tensor, inverse: float) -> Tensor:
    return (((values - values.max()) * inverse).exp() * MASS).round().long()


def _draw(values: Tensor, row: Row) -> int:
    mass = _masses(values, row.inverse)
    if 0 < row.top_k < len(values):
        mass[values < values.topk(row.top_k).values[-1]] = 0
    if row.top_p < 1:
        order = values.sort(descending=True, stable=True).indices
        before = mass[order].cumsum(0) - mass[order]
        mass[order[before >= _share(row.top_p, mass)]] = 0
    mass[mass < row.min_p * MASS] = 0
    if row.typical_p < 1:
        part = mass.double() / mass.sum()
        surprise = -(part.log())
        entropy = (part * surprise).nansum()
        distance = (surprise - entropy).abs()
        order = distance.sort(stable=True).indices
        last = int((mass[order].cumsum(0) < _share(row.typical_p, mass)).sum())
        mass[distance > distance[order[last]]] = 0
    steps = mass.cumsum(0)
    return int(torch.searchsorted(steps, row.random * int(steps[-1]) >> 64, right=True))


def _share(part: float, mass: Tensor) -> int:
    """Return the least sum of masses that is a part of all, at least 1."""
    total = int(mass.sum())
    return max(1, min(total, math.ceil(part * float(total))))


RUNG = Reference()
