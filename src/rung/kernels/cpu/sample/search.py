"""Searches among the logits of a row without sorting them.

A row is seen in spans of 16 blocks of 64 logits: the largest of each block is kept, and with it most blocks are passed
over. The k-th largest of the largest is a bound from below of the k-th largest logit. Exact bounds are found digit by
digit, as in a radix sort that follows one digit only.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.cpu.sample.masses import add_masses, mass_total, masses, scan_blocks, store_masses
from rung.kernels.cpu.sample.record import BLOCK, SPAN
from rung.kernels.isa.generic import larger, largest, load, read_float, spread
from rung.kernels.isa.scalar import as_f32, bits_of, floats, numbers, shorts

#: The lowest float32: what is below it is no candidate.
LOWEST = np.float32(-3.4028234663852886e38)
_NOTHING = np.float32(-np.inf)
_NAN = np.float32(np.nan)
_SIGN, _ALL = 0x80000000, 0xFFFFFFFF
#: Blocks of a span; int64 of the histogram of ``crossing``.
BLOCKS, BINS = SPAN // BLOCK, 2048


@numba.njit(**OPTIONS)
def blocks_of(count):
    """Blocks of so many logits, in whole spans."""
    return (count + SPAN - 1) // SPAN * BLOCKS


@numba.njit(**OPTIONS)
def block_at(values, tail, count, block):
    """The address of a block of a row of ``count`` logits; those behind the last whole span lie in ``tail``."""
    whole = count // SPAN * BLOCKS
    return values + 4 * BLOCK * block if block < whole else tail + 4 * BLOCK * (block - whole)


@numba.njit(**OPTIONS)
def pad(values, tail, count):
    """Copy the logits behind the last whole span to ``tail``, with -inf behind them to a whole one."""
    rest = count % SPAN
    x, out = floats(values + 4 * (count - rest)), floats(tail)
    for i in range(rest):
        out[i] = x[i]
    for i in range(rest, SPAN):
        out[i] = _NOTHING


@numba.njit(**OPTIONS)
def scan(values, tail, count, maxima):
    """The highest logit, NaN where one is, and the first block that has it; writes the largest of every block."""
    unordered, most, x = 0, spread(_NOTHING), floats(maxima)
    for span in range((count + SPAN - 1) // SPAN):
        out = maxima + 4 * BLOCKS * span
        unordered |= scan_blocks(block_at(values, tail, count, BLOCKS * span), out)
        most = larger(load(out), most)
    if unordered != 0:
        return _NAN, 0
    highest, best = largest(most), 0
    while x[best] != highest:
        best += 1
    return highest, best


@numba.njit(**OPTIONS)
def first_of(values, tail, count, block, value):
    """The first token of a block with that logit."""
    x = floats(block_at(values, tail, count, block))
    i = 0
    while x[i] != value:
        i += 1
    return BLOCK * block + i


@numba.njit(**OPTIONS)
def collect(values, tail, count, maxima, floor, ids, found):
    """Write tokens (int32) and logits of all that are not below ``floor``, in order; their number."""
    n, to, out = 0, shorts(ids), floats(found)
    for block in range(blocks_of(count)):
        if read_float(maxima + 4 * block) >= floor:
            x = floats(block_at(values, tail, count, block))
            for i in range(BLOCK):
                to[n], out[n] = BLOCK * block + i, x[i]
                n += 1 if x[i] >= floor else 0
    return n


@numba.njit(**OPTIONS)
def weigh(found, count, highest, inverse, out):
    """Write the masses (int64) of ``count`` logits, up to 15 behind them for nothing; their sum."""
    x, total = floats(found), 0
    for i in range(count, (count + 15) // 16 * 16):
        x[i] = _NOTHING
    for i in range(0, count, 16):
        mass = masses(load(found + 4 * i), highest, inverse)
        store_masses(out + 8 * i, mass)
        total += mass_total(mass)
    return total


@numba.njit(**OPTIONS)
def weigh_all(values, tail, count, maxima, floor, highest, inverse, sums):
    """The sum of all masses, and into ``sums`` those of the blocks; below ``floor`` no logit has any."""
    total, of = 0, numbers(sums)
    for block in range(blocks_of(count)):
        of[block] = 0
        if read_float(maxima + 4 * block) >= floor:
            at = block_at(values, tail, count, block)
            first = add_masses(masses(load(at), highest, inverse), masses(load(at + 64), highest, inverse))
            second = add_masses(masses(load(at + 128), highest, inverse), masses(load(at + 192), highest, inverse))
            of[block] = mass_total(add_masses(first, second))
            total += of[block]
    return total


@numba.njit(**OPTIONS)
def _ordered(value):
    """Bits that as an unsigned integer are ordered as the floats are; those of -0 are those of 0."""
    bits = bits_of(value + np.float32(0.0))
    return bits ^ _ALL if bits & _SIGN else bits | _SIGN


@numba.njit(**OPTIONS)
def _digit(found, weights, count, prefix, shift, bits, bins):
    """Add the weights of those whose bits above ``shift + bits`` are the prefix, by the next ``bits``."""
    x, of, sums = floats(found), numbers(weights), numbers(bins)
    for i in range(1 << bits):
        sums[i] = 0
    for i in range(count):
        key = _ordered(x[i])
        if key >> (shift + bits) == prefix:
            sums[(key >> shift) & ((1 << bits) - 1)] += of[i] if weights != 0 else 1


@numba.njit(**OPTIONS)
def crossing(found, weights, count, limit, bins):
    """The largest float at which the weights from the top on reach ``limit``, and their sum above it.

    Weights are int64, each 1 at address 0. The lowest float32 where all weights together are less.
    """
    above, prefix, sums = 0, 0, numbers(bins)
    for shift in (21, 10, 0):
        bits = 10 if shift == 0 else 11
        _digit(found, weights, count, prefix, shift, bits, bins)
        digit = (1 << bits) - 1
        while digit >= 0 and above + sums[digit] < limit:
            above += sums[digit]
            digit -= 1
        if digit < 0:
            return LOWEST, above
        prefix = prefix << bits | digit
    return as_f32(prefix ^ _SIGN if prefix & _SIGN else prefix ^ _ALL), above


@numba.njit(**OPTIONS)
def keep(ids, found, weights, count, threshold, left):
    """Keep those above the threshold, and of those at it the first until their weights reach ``left``; their number.

    Weights are int64, each 1 at address 0, and kept with the others.
    """
    token, x, of = shorts(ids), floats(found), numbers(weights)
    n = 0
    for i in range(count):
        if x[i] > threshold or (x[i] == threshold and left > 0):
            if x[i] == threshold:
                left -= of[i] if weights != 0 else 1
            token[n], x[n] = token[i], x[i]
            if weights != 0:
                of[n] = of[i]
            n += 1
    return n
