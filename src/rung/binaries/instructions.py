"""Which vector instructions the x86-64 code of a file holds, by byte sequences that compilers write for them.

Nothing is disassembled. A sequence of n bytes occurs by chance once in 256^n; more of them than chance allows are
instructions. Whether a program reaches them without asking the processor first cannot be told from the file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

#: What each set is told by, newest last: moves and broadcasts of whole registers, as Intel's manual encodes them.
_SIGNS: dict[str, tuple[bytes, ...]] = {
    "avx": (b"\xc5\xf8\x77",),  # vzeroupper, at the end of every function that used ymm registers
    "avx2": (b"\xc4\xe3\x7d\x39", b"\xc4\xe3\xfd\x00", b"\xc4\xe2\x7d\x58"),  # vextracti128, vpermq, vpbroadcastd
    "avx512f": (  # vmovups, vmovupd/vmovdqa64 and vmovdqu64 of zmm, the first and last of ymm16 and up
        b"\x62\xf1\x7c\x48",
        b"\x62\xf1\xfd\x48",
        b"\x62\xf1\xfe\x48",
        b"\x62\xe1\x7c\x28",
        b"\x62\xe1\xfe\x28",
    ),
}
#: More code than this is looked at in evenly spread pieces.
_BUDGET = 64 << 20
#: A set counts as held when its signs are seen this often beyond chance: twice in a little code is none.
_FEWEST, _BEYOND, _SPREAD = 1.5, 4, 5


class Watch:
    """Looks at the pieces of a file as they go by; its code lies at ``code``, as (from, to)."""

    def __init__(self, code: Sequence[tuple[int, int]]) -> None:
        self._code = code
        self._counts: Counter[str] = Counter()
        self._pieces = 0
        self._every = max(1, -(-sum(end - start for start, end in code) // _BUDGET))
        self.looked_at = 0

    def __call__(self, offset: int, piece: bytes) -> None:
        for start, end in self._code:
            part = piece[max(0, start - offset) : max(0, end - offset)]
            if part:
                self._pieces += 1
                if self._pieces % self._every == 0:
                    self._look(part)

    def _look(self, part: bytes) -> None:
        self.looked_at += len(part)
        for name, signs in _SIGNS.items():
            self._counts[name] += sum(part.count(sign) for sign in signs)

    def holds(self) -> tuple[str, ...]:
        """The sets that were seen."""
        return tuple(name for name, signs in _SIGNS.items() if self._counts[name] >= self._threshold(signs))

    def _threshold(self, signs: Sequence[bytes]) -> float:
        by_chance = self.looked_at * sum(256.0 ** -len(sign) for sign in signs)
        return _FEWEST + _BEYOND * by_chance + _SPREAD * math.sqrt(by_chance)
