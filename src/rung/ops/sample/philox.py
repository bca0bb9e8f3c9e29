"""Random bits that depend on a counter and a key only: Philox4x64-10.

Salmon, Moraes, Dror and Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3. The same bits as NumPy's ``Philox``.
"""

from __future__ import annotations

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
