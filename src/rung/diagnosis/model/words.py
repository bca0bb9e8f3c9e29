"""Words that speak for causes: numbers learned from messages. Weak evidence, but there is some in every message.

``words.table`` holds them, with a dash for "none of the causes"; ``rung.diagnosis.learning`` learns them. A word is
one or two words of the log as it stands, a part of a name in it, a word of the environment, a fact with ``=`` before
it, or a signature that matched or a rule that applies with ``#`` before it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.facts import Facts
from rung.diagnosis.logs.log import is_text, unnamed

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
