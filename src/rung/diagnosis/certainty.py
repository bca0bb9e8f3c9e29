"""How sure an answer is, in words, and how sure it may be at most."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rung.diagnosis.evidence import Scene
from rung.diagnosis.reading import Hit
from rung.diagnosis.score import tempered
from rung.diagnosis.words import said_by, votes

ALMOST, PROBABLY, ONE_OF, NOT_SURE = "almost certainly", "probably", "one of two or three", "not sure"
#: The least confidence of each.
_FROM = ((0.9, ALMOST), (0.7, PROBABLY), (0.3, ONE_OF), (0.0, NOT_SURE))
#: What a name of a status alone can be, and a message that several causes share.
MOST_ALONE = 0.65
_WORDS_ALONE = 2
#: A cause that is this sure is no guess; of so few words the log's own must give it this probability by themselves.
_FEW_WORDS, _SURE, _SAID = 4, 0.9, 0.2


def in_words(confidence: float) -> str:
    """Return how sure a cause of this confidence is, in words."""
    return next(words for least, words in _FROM if confidence >= least)


def limited(shares: Mapping[str, float], scene: Scene) -> Mapping[str, float]:
    """Return the shares, the first lowered where the log is a bare name or no message establishes the cause."""
    first = next(iter(shares), None)
    if first is None or not (_bare(scene) or _undecided(first, scene)):
        return shares
    return tempered(shares, MOST_ALONE)


def guessed(cause: str, share: float, scene: Scene) -> bool:
    """Return whether a few words that name no error led to the cause, by what else is known of the machine.

    Two in five of such answers were right on threads of which nothing was learned.
    """
    said = scene.ending
    if share >= _SURE or not said.isascii() or len(said.split()) > _FEW_WORDS:
        return False
    if any(hit.signature.causes.get(cause, 0) > 0 and not hit.signature.general for hit in scene.hits):
        return False
    return votes(said_by(scene)).get(cause, -math.inf) < math.log(_SAID)


def _bare(scene: Scene) -> bool:
    """Whether all that was said is a word or two: a status without its message."""
    return len(scene.ending.split()) <= _WORDS_ALONE


def _undecided(cause: str, scene: Scene) -> bool:
    """Whether every message that names the cause also stands for others, and nothing beside it decides."""
    found = [hit for hit in scene.hits if hit.signature.causes.get(cause, 0) > 0 and not hit.signature.general]
    return bool(found) and all(_unsure(cause, hit) for hit in found)


def _unsure(cause: str, hit: Hit) -> bool:
    return cause in hit.signature.unsure
