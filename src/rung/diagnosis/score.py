"""Adds up the evidence and turns it into calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rung.diagnosis.evidence import Rule
from rung.diagnosis.reading import Hit

#: Softmax temperature and the weight of "none of the known". By repository the corpus asks for 1.0, but its rows were
#: read while signatures were written: threads that nobody had read come out right less often, so it is higher.
TEMPERATURE = 1.3
UNKNOWN = 1.0
#: The second, third ... signature for one cause count this much less each: they say the same once more.
_REPEATED = 0.5
_WARNING, _SURVIVED, _LATE = 0.6, 0.25, 0.5


def weights(hits: Sequence[Hit], rules: Sequence[Rule]) -> dict[str, float]:
    """Weight of evidence by cause, in nats."""
    strengths: dict[str, list[float]] = {}
    seen: set[str] = set()
    leading = any(not hit.signature.late for hit in hits)
    alone = len({hit.signature.id for hit in hits}) == 1
    for hit in hits:
        if hit.signature.id in seen:
            continue
        seen.add(hit.signature.id)
        factor = _SURVIVED if hit.survived and not alone else _WARNING if hit.warning and not alone else 1.0
        factor *= _LATE if hit.signature.late and leading else 1.0
        for cause, weight in hit.signature.causes.items():
            strengths.setdefault(cause, []).append(weight * factor)
    total = {cause: _damped(found) for cause, found in strengths.items()}
    for rule in rules:
        for cause, weight in rule.causes.items():
            if weight > 0 or cause in total:
                total[cause] = total.get(cause, 0.0) + weight
    return total


def _damped(found: list[float]) -> float:
    return sum(weight * _REPEATED**place for place, weight in enumerate(sorted(found, reverse=True)))


def probabilities(total: Mapping[str, float]) -> dict[str, float]:
    """Probability by cause, falling; what is missing to 1 is that it is none of them."""
    scores = {cause: weight / TEMPERATURE for cause, weight in total.items()}
    scores[""] = UNKNOWN / TEMPERATURE
    top = max(scores.values())
    powers = {cause: math.exp(score - top) for cause, score in scores.items()}
    whole = sum(powers.values())
    ranked = sorted(powers.items(), key=lambda item: -item[1])
    return {cause: power / whole for cause, power in ranked if cause}
