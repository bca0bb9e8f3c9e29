"""Adds up the evidence and turns it into calibrated probabilities."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from rung.core.types import EMPTY
from rung.diagnosis.evidence import Rule
from rung.diagnosis.logs.reading import Hit
from rung.diagnosis.match import signatures
from rung.diagnosis.tables import tables

#: The weight of "none of the known", fitted like all that follows on answers about threads that nobody had read when
#: signatures and words were made.
UNKNOWN = 0.0
#: Weights set by hand were set on messages that somebody had seen; words are learned with the signatures and rules that
#: match among them, and know better what to make of these where nobody has. Two thirds of the former stand beside them.
BY_HAND = 0.67
#: Both together are too sure of threads that neither has met: this much of the scores makes the shares.
CAUTION = 0.9
#: However clear a message reads, this share of its threads had another cause: most often a defect of the release, which
#: shows by any message and is named by none, else one that shares messages with it.
DOUBT, DEFECT = 0.02, 0.7
_DEFECT = "software-defect"
#: What any other cause has beside those that share messages, as a part of one message.
_STRANGER = 0.5
#: The second, third ... signature for one cause count this much less each: they say the same once more.
_REPEATED = 0.5
_WARNING, _SURVIVED, _LATE = 0.6, 0.25, 0.5
#: A plain error that another exception led to counts this much where that one is none, and weighs so many nats.
_FOLLOWS, _CLEAR = 0.2, 2.0


def weights(hits: Sequence[Hit], rules: Sequence[Rule]) -> dict[str, float]:
    """Weight of evidence by cause, in nats."""
    strengths: dict[str, list[float]] = {}
    counted: set[str] = set()
    leading = any(not hit.signature.late for hit in hits)
    alone = len({hit.signature.id for hit in hits}) == 1
    root = any(not hit.follows and not hit.plain and max(hit.signature.causes.values()) >= _CLEAR for hit in hits)
    for hit in hits:
        if hit.signature.id in counted:
            continue
        counted.add(hit.signature.id)
        factor = _SURVIVED if hit.survived and not alone else _WARNING if hit.warning and not alone else 1.0
        factor *= _LATE if hit.signature.late and leading else 1.0
        factor *= _FOLLOWS if hit.follows and root and hit.plain else 1.0
        for cause, weight in hit.signature.causes.items():
            strengths.setdefault(cause, []).append(weight * factor)
    total = {cause: _damped(found) for cause, found in strengths.items()}
    for rule in rules:
        for cause, weight in rule.causes.items():
            if weight > 0 or cause in total:
                total[cause] = total.get(cause, 0.0) + weight
    return total


def _damped(found: list[float]) -> float:
    return sum(weight * _REPEATED**rank for rank, weight in enumerate(sorted(found, reverse=True)))


def probabilities(total: Mapping[str, float], learned: Mapping[str, float] = EMPTY) -> dict[str, float]:
    """Probability by cause, falling; what is missing to 1 is that it is none of them.

    ``learned`` are logarithms of probabilities by the words, under the empty label for none of the causes.
    """
    labels = {"", *total, *learned}
    scores = {label: BY_HAND * total.get(label, 0.0) + learned.get(label, 0.0) for label in labels}
    scores[""] += UNKNOWN
    top = max(scores.values())
    powers = {label: math.exp(CAUTION * (score - top)) for label, score in scores.items()}
    whole = sum(powers.values())
    shares = {label: power / whole for label, power in powers.items() if label}
    return dict(sorted(_doubted(shares).items(), key=lambda item: (-item[1], item[0])))


def _doubted(shares: Mapping[str, float]) -> dict[str, float]:
    if not shares:
        return {}
    first = min(shares, key=lambda label: (-shares[label], label))
    doubt = DOUBT * sum(shares.values())
    others = siblings(first)
    return {
        label: (1 - DOUBT) * shares.get(label, 0.0) + doubt * others.get(label, 0.0) for label in {*shares, *others}
    }


def tempered(shares: Mapping[str, float], most: float) -> dict[str, float]:
    """Shares of which the first is at most so large; the others have what it loses, as parts of their own and of what
    it is instead where it is not the first."""
    first = next(iter(shares), None)
    if first is None or shares[first] <= most:
        return dict(shares)
    lost, others = shares[first] - most, siblings(first)
    found = {label: shares.get(label, 0.0) + lost * others.get(label, 0.0) for label in {*shares, *others}}
    found[first] = most
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


@functools.cache
def siblings(cause: str) -> Mapping[str, float]:
    """Return the other causes where it is not this one: a defect, the causes that signatures name with it, or any
    other."""
    found = {row["label"]: _STRANGER / len(tables()["cause"]) for row in tables()["cause"] if row["label"] != cause}
    for signature in signatures():
        if signature.causes.get(cause, 0.0) > 0:
            odds = {label: math.exp(weight) for label, weight in signature.causes.items() if weight > 0}
            for label in odds.keys() - {cause}:
                found[label] += odds[label] / sum(odds.values())
    whole = sum(found.values()) / (1 - DEFECT if _DEFECT in found else 1)
    shares = {label: share / whole for label, share in found.items()}
    return shares | {_DEFECT: shares[_DEFECT] + DEFECT} if _DEFECT in shares else shares
