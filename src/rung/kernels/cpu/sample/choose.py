"""The kernel that chooses the tokens of rows of logits; ``rung.ops.sample`` says what of."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.sample.masses import high_product
from rung.kernels.cpu.sample.record import BLOCK, MASS, REACH, ROW, SPAN
from rung.kernels.cpu.sample.search import (
    BINS,
    LOWEST,
    block_at,
    blocks_of,
    collect,
    crossing,
    first_of,
    keep,
    pad,
    scan,
    weigh,
    weigh_all,
)
from rung.kernels.isa.generic import fetch_add
from rung.kernels.isa.scalar import doubles, floats, numbers, shorts

_INDEX = {name: index for index, name in enumerate(ROW.names or ())}
_LOGITS, _INVERSE, _REACH = (_INDEX[name] for name in ("logits", "inverse", "reach"))
_TOP_K, _TOP_P, _MIN_P, _TYPICAL = (_INDEX[name] for name in ("top_k", "top_p", "min_p", "typical_p"))
_REPEAT, _PRESENCE, _FREQUENCY = (_INDEX[f"{name}_penalty"] for name in ("repeat", "presence", "frequency"))
_PREVIOUS, _COUNTS, _PREVIOUS_COUNT = (_INDEX[name] for name in ("previous", "counts", "previous_count"))
_BIAS_IDS, _BIAS, _BIAS_COUNT, _MASK = (_INDEX[name] for name in ("bias_ids", "bias", "bias_count", "mask"))
_RANDOM, _TOP_COUNT, _TOP_IDS = (_INDEX[name] for name in ("random", "top_count", "top_ids"))
_TOKEN, _ERROR, _HIGHEST, _TOTAL = (_INDEX[name] for name in ("token", "error", "highest", "total"))
_SIZE = ROW.itemsize
#: Blocks from whose largest logits the first bound of top-p is taken.
_FEW = 256
_NOTHING = np.float32(-np.inf)

#: Words: the counter that rows are divided by, rows, vocabulary, the address of the records (``ROW``), scratch, and its
#: bytes for each thread.
WORDS = ("counter", "rows", "vocabulary", "records", "scratch", "room")
_ROWS, _VOCABULARY, _RECORDS, _SCRATCH, _ROOM = range(1, 6)


def room(vocabulary: int) -> int:
    """Bytes of scratch of a thread: ``_parts`` for the next whole span of logits."""
    padded = -(-vocabulary // SPAN) * SPAN + SPAN
    return 4 * SPAN + 8 * BINS + 16 * padded // BLOCK + 24 * padded


@numba.njit(**OPTIONS)
def _parts(scratch, vocabulary):
    """Addresses: of the tail, bins, the largest of blocks, sums of blocks, and logits that were changed; of candidates
    the tokens, logits, masses and distances."""
    padded = (vocabulary + SPAN - 1) // SPAN * SPAN + SPAN
    bins = scratch + 4 * SPAN
    maxima = bins + 8 * BINS
    sums = maxima + 8 * (padded // BLOCK)
    changed = sums + 8 * (padded // BLOCK)
    ids = changed + 4 * padded
    found = ids + 4 * padded
    masses = found + 4 * padded
    return scratch, bins, maxima, sums, changed, ids, found, masses, masses + 8 * padded


@numba.njit(**OPTIONS)
def _change(record, values, out, vocabulary):
    """Copy logits, with biases and penalties added and what the mask forbids taken away."""
    w, f, x, before = numbers(record), doubles(record), floats(out), floats(values)
    for token in range(vocabulary):
        x[token] = before[token]
    ids, bias = shorts(w[_BIAS_IDS]), floats(w[_BIAS])
    for i in range(w[_BIAS_COUNT]):
        if 0 <= ids[i] < vocabulary:
            x[ids[i]] += bias[i]
    previous, counts = shorts(w[_PREVIOUS]), shorts(w[_COUNTS])
    repeat = np.float32(f[_REPEAT])
    for i in range(w[_PREVIOUS_COUNT]):
        token = previous[i]
        if 0 <= token < vocabulary:
            value = x[token] * repeat if x[token] < np.float32(0) else x[token] / repeat
            less = counts[i] * f[_FREQUENCY] + f[_PRESENCE] if counts[i] > 0 else 0.0
            x[token] = np.float32(value - less)
    if w[_MASK] != 0:
        mask = numbers(w[_MASK])
        for token in range(vocabulary):
            if not (mask[token // BLOCK] >> (token % BLOCK)) & 1:
                x[token] = _NOTHING


@numba.njit(**OPTIONS)
def _write_likeliest(values, vocabulary, parts, count, out):
    """Write the ``count`` likeliest tokens, likeliest first, of equal ones the lower first, and none of -inf; their
    number."""
    tail, bins, maxima, _, _, ids, found, _, _ = parts
    blocks = blocks_of(vocabulary)
    floor = max(LOWEST, crossing(maxima, 0, blocks, count, bins)[0]) if count <= blocks else LOWEST
    n = collect(values, tail, vocabulary, maxima, floor, ids, found)
    threshold, above = crossing(found, 0, n, count, bins)
    n = keep(ids, found, 0, n, threshold, count - above)
    token, x, to = shorts(ids), floats(found), numbers(out)
    for i in range(n):
        at, value, number = i, x[i], token[i]
        while at > 0 and x[at - 1] < value:
            x[at], to[at] = x[at - 1], to[at - 1]
            at -= 1
        x[at], to[at] = value, number
    return n


@numba.njit(**OPTIONS)
def _candidates(values, record, vocabulary, parts, highest):
    """Tokens that top-k and top-p leave, with their masses; their number."""
    w, f = numbers(record), doubles(record)
    tail, bins, maxima, sums, _, ids, found, masses, _ = parts
    blocks, inverse = blocks_of(vocabulary), f[_INVERSE]
    lowest = max(np.float32(highest - f[_REACH] / inverse), LOWEST)
    k, top_p = w[_TOP_K], f[_TOP_P]
    if 0 < k < vocabulary:
        floor = max(lowest, crossing(maxima, 0, blocks, k, bins)[0]) if k <= blocks else lowest
        n = collect(values, tail, vocabulary, maxima, floor, ids, found)
        n = keep(ids, found, 0, n, crossing(found, 0, n, k, bins)[0], n)
        total = weigh(found, n, highest, inverse, masses)
        limit = _share(top_p, total)
    elif top_p < 1:
        total = weigh_all(values, tail, vocabulary, maxima, lowest, highest, inverse, sums)
        limit, few, n = _share(top_p, total), _FEW, 0
        while True:
            floor = max(lowest, crossing(maxima, 0, blocks, few, bins)[0]) if few < blocks else lowest
            n = collect(values, tail, vocabulary, maxima, floor, ids, found)
            if weigh(found, n, highest, inverse, masses) >= limit or floor == lowest:
                break
            few *= 8
    else:
        n = collect(values, tail, vocabulary, maxima, lowest, ids, found)
        weigh(found, n, highest, inverse, masses)
        limit = 0
    if top_p < 1:
        threshold, above = crossing(found, masses, n, limit, bins)
        n = keep(ids, found, masses, n, threshold, limit - above)
    return n


@numba.njit(**OPTIONS)
def _share(part, total):
    """The least sum of masses that is a part of all, at least 1."""
    return max(1, min(total, int(np.ceil(part * total))))


@numba.njit(**OPTIONS)
def _keep_likely(min_p, ids, found, masses, count):
    """Keep what has at least ``min_p`` times the likeliest token's probability; the number."""
    token, x, mass, n = shorts(ids), floats(found), numbers(masses), 0
    for i in range(count):
        if mass[i] >= min_p * MASS:
            token[n], x[n], mass[n] = token[i], x[i], mass[i]
            n += 1
    return n


@numba.njit(**OPTIONS)
def _keep_typical(part, parts, count, highest, inverse):
    """Keep what is about as surprising as the entropy says, up to that part of all; the number.

    -log p of a token minus the entropy is the mean of y minus its y = (logit - highest) / temperature.
    """
    _, bins, _, _, _, ids, found, masses, distances = parts
    token, x, mass, off = shorts(ids), floats(found), numbers(masses), floats(distances)
    total, moment = 0, 0
    for i in range(count):
        total += mass[i]
        moment += int(np.rint(mass[i] * ((x[i] - highest) * inverse)))
    mean = moment / total
    for i in range(count):
        off[i] = np.float32(-abs((x[i] - highest) * inverse - mean))
    threshold = crossing(distances, masses, count, _share(part, total), bins)[0]
    n = 0
    for i in range(count):
        if off[i] >= threshold:
            token[n], x[n], mass[n] = token[i], x[i], mass[i]
            n += 1
    return n


@numba.njit(**OPTIONS)
def _pick(masses, count, chance):
    """The first index at which the sum of masses is above ``chance``."""
    mass, i = numbers(masses), 0
    while i < count - 1 and chance >= mass[i]:
        chance -= mass[i]
        i += 1
    return i


@numba.njit(**OPTIONS)
def _draw_of_all(values, record, vocabulary, parts, highest):
    """One token of all, by the sums of the blocks."""
    w, f = numbers(record), doubles(record)
    tail, _, maxima, sums, _, _, _, masses, _ = parts
    lowest = max(np.float32(highest - f[_REACH] / f[_INVERSE]), LOWEST)
    total = weigh_all(values, tail, vocabulary, maxima, lowest, highest, f[_INVERSE], sums)
    chance, block, of = high_product(w[_RANDOM], total), 0, numbers(sums)
    while chance >= of[block]:
        chance -= of[block]
        block += 1
    weigh(block_at(values, tail, vocabulary, block), BLOCK, highest, f[_INVERSE], masses)
    return BLOCK * block + _pick(masses, BLOCK, chance)


@numba.njit(**OPTIONS)
def _draw(values, record, vocabulary, parts, highest):
    w, f = numbers(record), doubles(record)
    _, _, _, _, _, ids, found, masses, _ = parts
    if not 0 < w[_TOP_K] < vocabulary and f[_TOP_P] >= 1 and f[_MIN_P] <= 0 and f[_TYPICAL] >= 1:
        return _draw_of_all(values, record, vocabulary, parts, highest)
    n = _candidates(values, record, vocabulary, parts, highest)
    if f[_MIN_P] > 0:
        n = _keep_likely(f[_MIN_P], ids, found, masses, n)
    if f[_TYPICAL] < 1:
        n = _keep_typical(f[_TYPICAL], parts, n, highest, f[_INVERSE])
    mass, total = numbers(masses), 0
    for i in range(n):
        total += mass[i]
    return shorts(ids)[_pick(masses, n, high_product(w[_RANDOM], total))]


@numba.njit(**OPTIONS)
def _report(record, values, vocabulary, parts, highest):
    """Write what log probabilities are computed with, and the likeliest tokens, before any change."""
    w, f = numbers(record), doubles(record)
    tail, _, maxima, sums, _, _, _, _, _ = parts
    f[_HIGHEST] = highest
    lowest = max(np.float32(highest - REACH), LOWEST)
    w[_TOTAL] = weigh_all(values, tail, vocabulary, maxima, lowest, highest, 1.0, sums)
    if w[_TOP_COUNT] > 0:
        w[_TOP_COUNT] = _write_likeliest(values, vocabulary, parts, w[_TOP_COUNT], w[_TOP_IDS])


@kernel(3)
def choose_rows(words, thread, threads):
    """For ``parallel.run``: threads take a row at a time; see ``WORDS``."""
    arguments = numbers(words)
    vocabulary = arguments[_VOCABULARY]
    parts = _parts(arguments[_SCRATCH] + arguments[_ROOM] * thread, vocabulary)
    tail, _, maxima, _, changed, _, _, _, _ = parts
    while True:
        row = fetch_add(words, 1)
        if row >= arguments[_ROWS]:
            break
        record = arguments[_RECORDS] + _SIZE * row
        w = numbers(record)
        values, changes = w[_LOGITS], w[_PREVIOUS_COUNT] > 0 or w[_BIAS_COUNT] > 0 or w[_MASK] != 0
        for turn in range(2 if changes else 1):  # logits as they are, then with their changes
            if turn > 0:
                _change(record, values, changed, vocabulary)
                values = changed
            pad(values, tail, vocabulary)
            highest, best = scan(values, tail, vocabulary, maxima)
            if not np.isfinite(highest):
                w[_ERROR] = 2 if turn > 0 and highest == _NOTHING else 1
                break
            if turn == 0 and w[_TOP_COUNT] >= 0:
                _report(record, values, vocabulary, parts, np.float64(highest))
        if w[_ERROR] == 0:
            if doubles(record)[_INVERSE] == 0:
                w[_TOKEN] = first_of(values, tail, vocabulary, best, highest)
            else:
                w[_TOKEN] = _draw(values, record, vocabulary, parts, np.float64(highest))
