"""Turn signatures, rules and words into probabilities of causes, and say how sure they are."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources

from rung.core.types import EMPTY
from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.facts import Facts
from rung.diagnosis.logs.log import is_text, unnamed
from rung.diagnosis.logs.reading import Hit
from rung.diagnosis.match import signatures
from rung.diagnosis.tables import tables

#: Generations of NVIDIA GPUs, by their first compute capability.
_GENERATIONS = (120, 100, 90, 89, 80, 75, 70, 60, 50, 30)
_WORD = re.compile(r"[a-z][a-z_0]+|[\u4e00-\u9fff]")
_PART = re.compile(r"[A-Z]{3,}|[A-Z]?[a-z]{2,}")
_FRAME = re.compile(r'Traceback \(most recent call last\):?|\bFile "", line \d+(?:, in)?')
_NUMBER = re.compile(r"\d+")
#: Words that say nothing for any cause and are counted with those of each log, so that few words do not decide alone.
_SILENT = 4
#: Letters of an environment whose words count: a list of all packages would outvote the log.
_STATED = 1_000


def words_of(scene: Scene, rules: Iterable[Rule]) -> set[str]:
    """The words, pairs of words and parts of names of a log, the environment's words, what matches, and the facts.

    Numbers are read as 0; ``rules`` are those that apply to the scene.
    """
    ids = {hit.signature.id for hit in scene.hits if not (hit.follows and hit.plain)}  # as ``score`` counts them
    known = (f"#{name}" for name in (*ids, *(rule.id for rule in rules)))
    return {*log_words(scene), *_cut(scene.facts.stated[:_STATED]), *known, *_facts(scene.facts)}


def log_words(scene: Scene) -> set[str]:
    """The words, pairs of words and parts of names that the log itself says."""
    text = _FRAME.sub("", unnamed("\n".join(line for line in scene.excerpt.split("\n") if is_text(line))))
    found = _cut(text)
    pairs = map(" ".join, itertools.pairwise(found))
    parts = map(str.lower, _PART.findall(text))
    return {*found, *pairs, *parts}


def _cut(text: str) -> list[str]:
    return _WORD.findall(_NUMBER.sub("0", text.lower()))


def _facts(facts: Facts) -> Iterable[str]:
    if facts.gpu is not None:
        yield f"={facts.gpu.vendor}"
    if facts.capability is not None:
        yield f"={next((first for first in _GENERATIONS if facts.capability >= first), 0)}"
    for name, there in (
        ("=windows", facts.windows),
        ("=apple", facts.apple),
        ("=half is broken", facts.gpu is not None and facts.gpu.half_is_broken),
        ("=on the processor", facts.on_cpu),
        ("=driver", bool(facts.driver)),
    ):
        if there:
            yield name
    yield from (f"={dtype}" for dtype in facts.dtypes)


class Rows(Mapping[str, str]):
    """Sorted lines of a word, a tab and a row, searched as they are: making a dictionary takes 20 ms."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def __getitem__(self, word: str) -> str:
        key = f"{word}\t"
        at = bisect.bisect_left(self._lines, key)
        if at == len(self._lines) or not self._lines[at].startswith(key):
            raise KeyError(word)
        return self._lines[at][len(key) :]

    def __iter__(self) -> Iterator[str]:
        return (line.partition("\t")[0] for line in self._lines)

    def __len__(self) -> int:
        return len(self._lines)


#: The labels of a table, and the weights of each word as they are written.
Table = tuple[tuple[str, ...], Mapping[str, str]]


def read_table(name: str) -> Table:
    """A table of this package: a line of labels, then sorted words, a tab and their weights as ``place:nats``."""
    first, *lines = (resources.files("rung.diagnosis") / name).read_text(encoding="utf-8").splitlines()
    labels = tuple("" if label == "-" else label for label in first.split())
    return labels, Rows(lines)


@functools.cache
def word_table() -> Table:
    """Return the learned weights of words for each cause."""
    return read_table("words.table")


def share(count: int) -> float:
    """Return the weight of each of ``count`` known words of a log."""
    return 1 / math.sqrt(count + _SILENT)


@functools.cache
def weighed(row: str) -> tuple[tuple[int, float], ...]:
    """The places and nats of a word."""
    items = (item.partition(":") for item in row.split())
    return tuple((int(column), float(nats)) for column, _, nats in items)


def scores(words: Iterable[str], table: Table) -> list[float] | None:
    """Return the scores of the words for each label of a table, in nats; None where no word is known."""
    labels, rows = table
    # sorted, for sums in the order of a set end differently from run to run
    known = [row for row in map(rows.get, sorted(words)) if row is not None]
    total = [0.0] * len(labels)
    for row in known:
        for column, weight in weighed(row):
            total[column] += weight
    return [weight * share(len(known)) for weight in total] if known else None


def votes(words: Iterable[str]) -> dict[str, float]:
    """The logarithm of each cause's probability by its words alone; empty when no word is known."""
    labels, _ = table = word_table()
    found = scores(words, table)
    if found is None:
        return {}
    whole = math.log(sum(map(math.exp, found)))
    return {label: score - whole for label, score in zip(labels, found, strict=True)}


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
