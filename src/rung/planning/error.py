"""The predicted error of a model's weights, from the floors of their formats."""

from __future__ import annotations

import math
from collections.abc import Iterable


def combined_db(parts: Iterable[tuple[int, float]]) -> float:
    """SQNR in dB of weights stored in several formats.

    ``parts`` are (number of weights, floor in dB). Noise powers add: the signal power per weight is taken
    to be the same in every part. Infinite when nothing is lost.
    """
    counted = list(parts)
    weights = sum(count for count, _ in counted)
    noise = sum(count * 10 ** (-floor / 10) for count, floor in counted if math.isfinite(floor))
    return math.inf if noise == 0 else -10 * math.log10(noise / weights)


def percent(db: float) -> float:
    """The relative error in per cent that an SQNR in dB means: 40 dB is 1 %."""
    return 0.0 if math.isinf(db) else float(100 * 10 ** (-db / 20))
