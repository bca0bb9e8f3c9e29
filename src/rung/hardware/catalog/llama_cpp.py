"""Hold what llama.cpp reaches on cards: published tokens a second, and the share of the card's bandwidth that they
are."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rung.core.value import Value
from rung.hardware.catalog.names import find

_TABLE = Path(__file__).with_suffix(".table")
_NAMED = re.compile(r"# (model|source) (\S+) = (.*)")
#: Bits of a weight of the formats that were measured.
_BITS = {"q4_0": 4.5, "q4_k_m": 4.85, "q8_0": 8.5, "f16": 16.0}
#: A figure is taken for models that read at least this share of its bytes: smaller ones wait for launches, not memory.
_SMALLEST = 0.25


@dataclass(frozen=True)
class Decoding(Value):
    """One published measurement: ``bytes`` are read for each token of ``model``, ``source`` says who published it."""

    card: str
    model: str
    bytes: float
    tokens_per_second: float
    backend: str
    source: str

    @property
    def bits(self) -> float:
        """Bits of a weight, scales included."""
        return _BITS[self.model.rpartition(":")[2]]


@functools.cache
def published() -> Mapping[str, tuple[Decoding, ...]]:
    """Return the measurements by the card's name in the catalog."""
    named: dict[str, dict[str, str]] = {"model": {}, "source": {}}
    found: dict[str, tuple[Decoding, ...]] = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if match := _NAMED.fullmatch(line):
            named[match[1]][match[2]] = match[3]
        elif line and not line.startswith("#"):
            card, model, rate, backend, source = map(str.strip, line.split(" | "))
            size = float(named["model"][model])
            row = Decoding(card, model, size, float(rate), backend, named["source"][source])
            found[card] = (*found.get(card, ()), row)
    return found


@functools.cache
def _product(card: str) -> str:
    """Return the catalog's name of what a driver calls a card."""
    product = find(card)
    return product.name if product else ""


def nearest(card: str, bits: float, read: float) -> Decoding | None:
    """Return the measurement to go by for weights of so many bits of which a token reads ``read`` bytes.

    The widest format that is not wider, since wide formats reach a larger share; of these the model nearest in size.
    None for a card without figures, and where the model is too small to be told from these.
    """
    rows = published().get(card) or published().get(_product(card), ())
    if not rows:
        return None
    wide = max((row.bits for row in rows if row.bits <= bits + 0.5), default=min(row.bits for row in rows))
    alike = [row for row in rows if abs(row.bits - wide) <= 0.5]
    best = min(alike, key=lambda row: abs(math.log(read / row.bytes)))
    return best if read >= _SMALLEST * best.bytes else None


def expected(card: str, bits: float, read: float) -> tuple[float, Decoding] | None:
    """Return the tokens a second to expect of llama.cpp, and the measurement they come from."""
    row = nearest(card, bits, read)
    return None if row is None else (row.tokens_per_second * row.bytes / read, row)
