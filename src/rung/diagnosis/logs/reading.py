"""Reads a log once and keeps what counts: the lines that signatures match, and what stands about the device."""

from __future__ import annotations

import functools
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from rung.core.types import EMPTY
from rung.core.value import FrozenDict
from rung.diagnosis.logs.log import blocks, in_english, is_text, plain, states, unnamed
from rung.diagnosis.logs.mentions import KEPT, LONGEST, NAMING
from rung.diagnosis.match import Signature, signatures

#: A log of which so many lines differ in more than digits, or cost so much, repeats nothing: from there on only lines
#: with one of the stems are looked at, after so much more only the last ones. So a gigabyte of them costs no more than
#: one of training. What a line costs is its letters, once for itself and once for each pattern that is tried on it.
_REMEMBERED, _WORK, _ALL_WORK = 40_000, 25_000_000, 60_000_000
#: What every line costs, however short.
_LINE = 30
_STEMS = tuple(b"error fail exception support killed abort memory".split())
#: Matched lines that are kept of each signature, the first ones: what comes later says the same once more.
_KEPT = 12
_CONTEXT = 60
#: Last lines, and characters of each, whose words count beside those of matched lines.
_LAST, _LAST_LENGTH = 20, 600
#: Letters by which anchors are looked up: each line is cut into all of its pieces of this length once.
_PIECE = 3
_DIGITS = b"0123456789"
#: Bytes that are no text spell words of so many letters.
_BY_CHANCE = 8
_ABOUT = re.compile(
    r"capabilit|compiled for|torch|cuda|driver|gpu|device|nvidia|radeon|gfx|arc |apple|windows|\.dll|dtype|half"
    r"|float|bit|zluda|entry function|\bsm_\d",
    re.IGNORECASE,
)
#: A program that goes on after an error says so; the error is then no cause.
_SURVIVED = re.compile(
    r"(?i)\b(?:retry(?:ing)?\b|falling back|fall back to|will be ignored|skipping|using .{0,30} instead"
    r"|(?<!from type )(?<!\bis )disabled(?! (?:the )?GPU)|disabling(?! (?:the )?GPU)|continuing"
    r"|fallback to|casting to|will (?:change|switch) to|using \w{1,30} backend)"
)
#: What Python writes between two exceptions of which the first led to the second, and in how many lines the last
#: exception of such a chain stands.
_CHAIN = re.compile(
    r"The above exception was the direct cause of|During handling of the above exception, another exception occurred"
)
_CHAINED = 300
_OUTSIDE = "not-a-compatibility-problem"
#: Lines after an error that was survived which show that it was.
_WENT_ON = 3
_WARNING = re.compile(r"(?i)\bwarn(?:ing)?\b|\bW(?:ARN)?\]|UserWarning|FutureWarning|^\[W:|\bINFO\b|\bDEBUG\b")


@dataclass(frozen=True)
class Hit:
    """A signature found in a line; ``survived`` where the program went on, ``follows`` where an earlier exception
    led to this one."""

    signature: Signature
    number: int
    line: str
    words: str
    facts: FrozenDict[str] = EMPTY
    survived: bool = False
    warning: bool = False
    follows: bool = False

    @property
    def plain(self) -> bool:
        """Return whether the signature is first of all one of plain errors of programs."""
        causes = self.signature.causes
        return not causes or max(causes, key=causes.__getitem__) == _OUTSIDE


@dataclass
class Reading:
    """Hold what is kept of a log: hits in the order of its lines, lines about device and software, lines that hold
    names of files, packages and models (``named``), and the last lines.

    ``found`` counts the lines by signature, ``work`` what all lines together have cost; ``chained`` is the last line
    that joins two exceptions, 0 before there is one, ``number`` the last line that was looked at.
    """

    hits: list[Hit] = field(default_factory=list)
    about: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST))
    found: Counter[str] = field(default_factory=Counter)
    work: int = 0
    chained: int = 0
    number: int = 0

    @property
    def went_on(self) -> bool:
        """Return whether all that was found was survived, and the program said more than a little after it."""
        if not self.hits or not all(hit.survived for hit in self.hits):
            return False
        return self.number - max(hit.number for hit in self.hits) >= _WENT_ON


def read(chunks: Iterable[bytes]) -> Reading:
    """Goes through a stream in UTF-8 once; memory stays bounded whatever its size."""
    reading = Reading()
    hashes: set[int] = set()
    looked = 0
    ends: deque[tuple[int, bytes]] = deque(maxlen=2)  # the last block may be a line without an end
    for first, block in blocks(chunks):
        ends.append((first, block))
        if reading.work >= _ALL_WORK:
            continue
        fresh = looked < _REMEMBERED and reading.work < _WORK
        for number, line in _fresh(first, block, hashes) if fresh else _telling(first, block, hashes):
            for state in _shown(line, hashes):
                looked += 1
                look_at(reading, number, plain(state))
            if reading.work >= _ALL_WORK:
                break
    if reading.work >= _ALL_WORK:
        rows = [row for first, block in ends for row in enumerate(block.split(b"\n"), first)]
        for number, line in rows[-_LAST:]:
            for state in states(line):
                look_at(reading, number, plain(state))
    return reading


def _fresh(first: int, block: bytes, hashes: set[int]) -> Iterator[tuple[int, bytes]]:
    """The lines, with their numbers, that differ from all before in more than digits."""
    if not block.strip():
        return
    rows = block.translate(None, _DIGITS).split(b"\n")
    if hashes.issuperset(map(hash, set(rows))):  # the most of a log: lines that repeat, many of them within a block
        return
    kinds = list(map(hash, rows))
    for offset, line in enumerate(block.split(b"\n")):
        if kinds[offset] not in hashes:
            hashes.add(kinds[offset])
            yield first + offset, line


def _shown(line: bytes, hashes: set[int]) -> Iterator[str]:
    """Yield what a line showed, one after the other; of a progress bar what differs from all before in more than
    digits."""
    if b"\r" not in line.rstrip(b"\r"):
        yield from states(line)
        return
    for state in line.split(b"\r"):
        kind = hash(state.translate(None, _DIGITS))
        if kind not in hashes:
            hashes.add(kind)
            yield from states(state)


def _telling(first: int, block: bytes, hashes: set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield those of the lines that hold a telling word, found without looking at the others."""
    low = block.lower()
    starts = set()
    for stem in _STEMS:
        position = low.find(stem)
        while position >= 0:
            starts.add(low.rfind(b"\n", 0, position) + 1)
            end = low.find(b"\n", position)
            position = low.find(stem, end) if end >= 0 else -1
    number, counted = first, 0
    for start in sorted(starts):
        number, counted = number + low.count(b"\n", counted, start), start
        stop = block.find(b"\n", start)
        line = block[start : stop if stop >= 0 else None]
        kind = hash(line.translate(None, _DIGITS))
        if kind not in hashes:
            hashes.add(kind)
            yield number, line


def look_at(reading: Reading, number: int, line: str) -> None:
    """Add what a line says to a reading."""
    line = in_english(line)
    reading.last.append(line[:_LAST_LENGTH])
    reading.number = number
    if _CHAIN.search(line):
        reading.chained = number
    near = bool(reading.hits) and reading.hits[-1].number >= number - 2
    found = matches(unnamed(line), reading)
    if not is_text(line):
        found = [item for item in found if len(item[1][0]) > _BY_CHANCE]
    if found or near:
        specific = [item for item in found if not item[0].general] or found
        survived, warning = bool(_SURVIVED.search(line)), bool(_WARNING.search(line))
        if survived and near and all(signature.general for signature, _ in specific):
            reading.hits[-1] = replace(reading.hits[-1], survived=True)
        for signature, match in specific:
            reading.found[signature.id] += 1
            if reading.found[signature.id] > _KEPT:
                continue
            facts = FrozenDict({key: value for key, value in match.groupdict().items() if value})
            where = number, line.strip()[:600], match[0][:200]
            follows = 0 < reading.chained >= number - _CHAINED
            reading.hits.append(Hit(signature, *where, facts, survived, warning, follows))
    if len(reading.about) < _CONTEXT and _ABOUT.search(line):
        reading.about.append(line[:1_000])
    if len(reading.named) < KEPT and NAMING.search(line[:LONGEST]):
        reading.named.append(line[:LONGEST])


def matches(line: str, reading: Reading) -> list[tuple[Signature, re.Match[str]]]:
    """Return signatures found in a line; of the general ones, which set none aside, those that are known too little."""
    low = line.lower()
    always, index = _index()
    pieces = {low[start : start + _PIECE] for start in range(len(low) - _PIECE + 1)}
    if not low.isascii():
        pieces.update(low)
    tried = dict.fromkeys(always)
    for piece in pieces & index.keys():
        for word, rows in index[piece]:
            if word in low:
                tried.update(dict.fromkeys(rows))
    found = []
    for number in sorted(tried):  # in the order of the rows: that of a set changes from run to run
        signature = signatures()[number]
        if signature.general and reading.found[signature.id] >= _KEPT:
            continue
        reading.work += len(line)
        match = signature.pattern.search(line)
        if match:
            found.append((signature, match))
    reading.work += _LINE + len(line)
    return found


@functools.cache
def _index() -> tuple[tuple[int, ...], dict[str, list[tuple[str, tuple[int, ...]]]]]:
    """Places of the signatures without an anchor; and by the last letters of each anchor, it and what it stands for."""
    always: list[int] = []
    by_word: dict[str, list[int]] = {}
    for index, signature in enumerate(signatures()):
        if not signature.anchors or min(map(len, map(_piece, signature.anchors))) == 0:
            always.append(index)
            continue
        for word in signature.anchors:
            by_word.setdefault(word, []).append(index)
    by_piece: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for word, rows in by_word.items():
        by_piece.setdefault(_piece(word), []).append((word, tuple(rows)))
    return tuple(always), by_piece


def _piece(word: str) -> str:
    """Return the letters that a line must hold before the word is looked for: its last letters, or the last letter of
    another script."""
    if not word[-1].isascii():
        return word[-1]
    return word[-_PIECE:] if len(word) >= _PIECE else ""
