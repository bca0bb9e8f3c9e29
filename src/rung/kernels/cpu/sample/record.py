"""A row as the kernel of sampling reads and writes it, and the numbers that masses are computed with.

Without Numba: the rung in NumPy computes the same masses from the same numbers.
"""

from __future__ import annotations

import math

import numpy as np

#: The mass of the likeliest token is 2^42: a vocabulary of 2^20 sums up to less than 2^63, and what is rounded to
#: nothing has less than 2^-43 of the likeliest token's probability.
MASS_BITS = 42
MASS = 1 << MASS_BITS
#: A token this far below the highest logit, in units of the temperature, has no mass: exp(-30.2) * 2^42 < 0.5.
REACH = 30.2
#: exp(x) = 2^k * exp(r) with k = round(x / ln 2): x is held to at least this, ln 2 has two parts, of which the first
#: has so few bits that k times it is exact (Cody and Waite), and exp(r) has Taylor's terms up to r^11.
LOWEST_EXPONENT = -60.0
LOG2_E = 1.4426950408889634
LN2 = (0.6931471803691238, 1.9082149292705877e-10)
TAYLOR = tuple(1 / math.factorial(n) for n in range(11, -1, -1))

#: A row: the address of its f32 logits; 1 / temperature, 0 for the likeliest token; how far below the highest logit
#: tokens can be chosen, in units of the temperature; filters, as ``rung.ops.sample`` has them; tokens said (int32),
#: how often in the answer (int32), and their number; biased tokens (int32), biases (f32), and their number; the mask
#: or 0; 64 random bits; how many of the likeliest tokens are wanted, -1 where no log probability is, and where their
#: ids go (int64). The kernel writes how many there were, the token, one of ``ERRORS``, the highest logit and the sum of
#: masses at temperature 1.
ROW = np.dtype(
    [
        *[("logits", "<i8"), ("inverse", "<f8"), ("reach", "<f8")],
        *[("top_k", "<i8"), ("top_p", "<f8"), ("min_p", "<f8"), ("typical_p", "<f8")],
        *[("repeat_penalty", "<f8"), ("presence_penalty", "<f8"), ("frequency_penalty", "<f8")],
        *[("previous", "<i8"), ("counts", "<i8"), ("previous_count", "<i8")],
        *[("bias_ids", "<i8"), ("bias", "<i8"), ("bias_count", "<i8"), ("mask", "<i8")],
        *[("random", "<u8"), ("top_count", "<i8"), ("top_ids", "<i8")],
        *[("token", "<i8"), ("error", "<i8"), ("highest", "<f8"), ("total", "<i8")],
    ]
)
#: By what the kernel writes: no error, logits that are no numbers, a mask that allows nothing.
ERRORS = ("", "not-numbers", "nothing-allowed")
#: Logits of which the largest is kept, and tokens of a word of a mask; and logits that are looked at together.
BLOCK, SPAN = 64, 1024
