"""How sure an answer is, in words, and how sure it may be at most."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from rung.diagnosis.evidence import Scene
from rung.diagnosis.logs.reading import Hit
from rung.diagnosis.model.score import tempered
from rung.diagnosis.model.words import log_words, votes

ALMOST, PROBABLY, ONE_OF, NOT_SURE = "almost certainly", "probably", "one of two or three", "not sure"
#: The least confidence of each.
_FROM = ((0.9, ALMOST), (0.7, PROBABLY), (0.3, ONE_OF), (0.0, NOT_SURE))
#: What a name of a status alone can be, and a message that several causes share.
MOST_ALONE = 0.65
_WORDS_ALONE = 2
#: A cause that is this sure is no guess; of so few words the log's own must give it this probability by themselves.
_FEW_WORDS, _SURE, _SAID = 4, 0.9, 0.2


#: Words of everyday speech about a computer that does not do what somebody wants. A text of these alone names no
#: package, code, number or message.
_EVERYDAY_TEXT = """
a about after again all also always am amd an and another any anymore anything are as at bad be because been before
black blank break breaks broke broken but by can cannot cant card cards come computer could crash crashed crashes
crashing cuda did didnt do does doesnt doing don done dont else error errors even ever every everything fail failed
failing fails fast few find fine finds first fix for freeze freezes from gave get gets getting give gives go goes
going good got gpu gpus graphics had hang hangs has have having he help here how i idea if im image images in
instead intel into is isnt issue it its just keep keeps know laptop like little long look load loads lot low m
machine make makes me mine model models more most much my need needs never new no nobody not nothing now nvidia of
off often ok old on once one only open or other our out output over pc please possible problem problems program
really recognised recognized right run running runs s say says see seems seen sees she should show shows slow
slower slowly so some someone something sometimes start started starts still stop stopped stops strange stuck such
t take takes task than thanks that the their them then there these they thing things think this time times to today
told too tried tries try trying up us use used uses using very video want wants was wasnt we weird well went were
what when where which while who why will with without won wont work worked working works worse would write wrong
yes yesterday you your
"""
_EVERYDAY = frozenset(_EVERYDAY_TEXT.split())
_APOSTROPHE = str.maketrans("", "", "'\u2019`")


def in_words(confidence: float) -> str:
    """Return how sure a cause of this confidence is, in words."""
    return next(words for least, words in _FROM if confidence >= least)


def limited(shares: Mapping[str, float], scene: Scene) -> Mapping[str, float]:
    """Return the shares, the first lowered where the log is a bare name, everyday words or too few of them, or where no
    message establishes the cause. Their order stays."""
    first = next(iter(shares), None)
    if first is None:
        return shares
    if vague(scene) or _bare(scene) or _undecided(first, scene) or _unnamed(first, scene):
        return tempered(shares, MOST_ALONE)
    return shares


def vague(scene: Scene) -> bool:
    """Return whether the log is everyday words alone: it tells that something is wrong, not what a program said."""
    words = re.findall(r"[^\s.,:;!?()\"\u2026-]+", scene.ending.lower().translate(_APOSTROPHE))
    return bool(words) and _EVERYDAY.issuperset(words)


def guessed(cause: str, share: float, scene: Scene) -> bool:
    """Return whether a few words that name no error led to the cause, by what else is known of the machine.

    Two in five of such answers were right on threads of which nothing was learned.
    """
    return share < _SURE and _unnamed(cause, scene)


def _unnamed(cause: str, scene: Scene) -> bool:
    """Return whether a few words, none of them of an error, led to the cause."""
    ending = scene.ending
    if not ending.isascii() or len(ending.split()) > _FEW_WORDS:
        return False
    if any(hit.signature.causes.get(cause, 0) > 0 and not hit.signature.general for hit in scene.hits):
        return False
    return votes(log_words(scene)).get(cause, -math.inf) < math.log(_SAID)


def _bare(scene: Scene) -> bool:
    """Return whether all that was said is a word or two: a status without its message."""
    return len(scene.ending.split()) <= _WORDS_ALONE


def _undecided(cause: str, scene: Scene) -> bool:
    """Return whether every message that names the cause also stands for others, and nothing beside it decides."""
    found = [hit for hit in scene.hits if hit.signature.causes.get(cause, 0) > 0 and not hit.signature.general]
    return bool(found) and all(_unsure(cause, hit) for hit in found)


def _unsure(cause: str, hit: Hit) -> bool:
    return cause in hit.signature.unsure
