"""Sampling in NumPy: what the compiled kernel chooses, one row after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats
from rung.kernels.cpu.sample.record import LN2, LOG2_E, LOWEST_EXPONENT, MASS, MASS_BITS, TAYLOR
from rung.ops.token_choice import Chosen, Row, chosen

_WORD = 0xFFFFFFFFFFFFFFFF
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def random_bits(seed: int, choice: int, position: int) -> int:
    """Return the first 64 bits of the counter (position, choice, 0, 0) under the key (seed, 0)."""
    first, second, third, fourth = position, choice, 0, 0
    key, other = seed, 0
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
        first, second = (high >> 64) ^ second ^ key, high & _WORD
        third, fourth = (low >> 64) ^ fourth ^ other, low & _WORD
        key, other = (key + _WEYL[0]) & _WORD, (other + _WEYL[1]) & _WORD
    return first


_Ids = npt.NDArray[np.int64]
#: Candidates of top-p that are sorted first; logits whose masses are computed at once, in the processor's cache.
_FEW, _SLAB = 1024, 16384


class Sample:
    """See ``rung.ops.sample``; there is no state."""

    def prepare(self, *, threads: int) -> None:
        """Keep nothing: NumPy computes on one thread."""

    def apply(self, state: None, logits: Floats, rows: Sequence[Row]) -> list[Chosen]:
        """f32 [rows, vocabulary] -> what is chosen of each."""
        return [_choose(values, row) for values, row in zip(logits, rows, strict=True)]


def _choose(logits: Floats, row: Row) -> Chosen:
    likeliest = int(logits.argmax())  # the first NaN where there is one
    if not math.isfinite(logits[likeliest]):
        return Chosen(error="not-numbers")
    values, best = logits, likeliest
    if row.changes:
        values = _changed(logits, row)
        best = int(values.argmax())
        if not math.isfinite(values[best]):
            return Chosen(error="nothing-allowed" if values[best] == -math.inf else "not-numbers")
    token = best if not row.inverse else _draw(values, float(values[best]), row)
    if row.top_logprobs is None:
        return Chosen(token)
    highest = float(logits[likeliest])
    count = min(row.top_logprobs, logits.size)
    likely = _largest(logits, count)[:count].tolist() if count else []
    likely = [each for each in likely if logits[each] > -math.inf]
    return chosen(logits, token, highest, int(masses(logits, highest, 1.0).sum()), likely)


def _changed(logits: Floats, row: Row) -> Floats:
    """Return the logits with biases and penalties, -inf where the mask forbids a token."""
    out = logits.copy()
    known = (row.bias_ids >= 0) & (row.bias_ids < out.size)
    out[row.bias_ids[known]] += row.bias[known]
    known = (row.previous >= 0) & (row.previous < out.size)
    counted, counts, penalty = row.previous[known], row.counts[known], np.float32(row.repeat_penalty)
    with np.errstate(over="ignore"):  # what is infinite then is an error of the row
        values = np.where(out[counted] < 0, out[counted] * penalty, out[counted] / penalty)
    out[counted] = values - np.where(counts > 0, counts * row.frequency_penalty + row.presence_penalty, 0.0)
    if row.mask is not None:
        bits = np.unpackbits(row.mask.view(np.uint8), count=out.size, bitorder="little")
        out[bits == 0] = -np.inf
    return out


def masses(logits: Floats, highest: float, inverse: float) -> npt.NDArray[np.int64]:
    """exp((logit - highest) * inverse) in units of 2^-42, the bits of ``rung.kernels.cpu.sample.masses``."""
    out = np.empty(logits.size, np.int64)
    for first in range(0, logits.size, _SLAB):
        y = logits[first : first + _SLAB].astype(np.float64)
        y -= highest
        y *= inverse
        np.maximum(y, LOWEST_EXPONENT, out=y)
        power = np.rint(y * LOG2_E)
        y -= power * LN2[0]
        y -= power * LN2[1]
        value = np.full(y.shape, TAYLOR[0])
        for term in TAYLOR[1:]:
            value *= y
            value += term
        value.view(np.int64)[:] += power.astype(np.int64) + MASS_BITS << 52  # to the exponent; ldexp takes a call each
        out[first : first + _SLAB] = np.rint(value)
    return out


def _draw(values: Floats, highest: float, row: Row) -> int:
    ids, mass = _candidates(values, highest, row)
    if row.min_p > 0:
        kept = mass >= row.min_p * MASS
        ids, mass = ids[kept], mass[kept]
    if row.typical_p < 1:
        kept = _typical(values[ids], highest, mass, row)
        ids, mass = ids[kept], mass[kept]
    steps = np.cumsum(mass)
    return int(ids[np.searchsorted(steps, row.random * int(steps[-1]) >> 64, side="right")])


def _candidates(values: Floats, highest: float, row: Row) -> tuple[_Ids, npt.NDArray[np.int64]]:
    """Return tokens that top-k and top-p leave, in order, with their masses."""
    if 0 < row.top_k < values.size:
        kth = np.partition(values, values.size - row.top_k)[values.size - row.top_k]
        ids = np.flatnonzero(values >= kth)
    else:
        ids = np.arange(values.size)
    mass = masses(values[ids], highest, row.inverse)
    kept = mass > 0
    ids, mass = ids[kept], mass[kept]
    if row.top_p >= 1:
        return ids, mass
    limit, count = _share(row.top_p, int(mass.sum())), _FEW
    while True:
        order = _largest(values[ids], min(count, len(ids)))
        if count >= len(ids) or mass[order].sum() >= limit:
            break
        count *= 8
    before = np.cumsum(mass[order]) - mass[order]
    kept = np.sort(order[before < limit])
    return ids[kept], mass[kept]


def _largest(values: Floats, count: int) -> _Ids:
    """Return indices of the ``count`` largest and of what is equal to the last, largest first; of equal ones the lower
    first."""
    found = np.flatnonzero(values >= np.partition(values, values.size - count)[values.size - count])
    order: _Ids = found[np.argsort(-values[found], kind="stable")]
    return order


def _share(part: float, total: int) -> int:
    """Return the least sum of masses that is a part of all, at least 1."""
    return max(1, min(total, math.ceil(part * float(total))))


def _typical(values: Floats, highest: float, mass: npt.NDArray[np.int64], row: Row) -> npt.NDArray[np.bool_]:
    """Mark the tokens that are about as surprising as the entropy (locally typical sampling).

    -log p of a token minus the entropy is the mean of y minus its y = (logit - highest) / temperature.
    """
    y = (values.astype(np.float64) - highest) * row.inverse
    y[mass == 0] = LOWEST_EXPONENT
    total = int(mass.sum())
    mean = float(int(np.rint(mass * y).astype(np.int64).sum())) / float(total)
    distance = np.abs(y - mean).astype(np.float32)
    order = np.argsort(distance, kind="stable")
    last = np.searchsorted(np.cumsum(mass[order]), _share(row.typical_p, total))
    kept: npt.NDArray[np.bool_] = distance <= distance[order[last]]
    return kept


RUNG = Sample()
