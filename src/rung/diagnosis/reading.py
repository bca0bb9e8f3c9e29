"""Reads a log once and keeps what counts: the lines that signatures match, and what stands about the device."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rung.core.types import EMPTY
from rung.core.value import FrozenDict
from rung.diagnosis.log import blocks, plain, states
from rung.diagnosis.match import Signature, signatures

#: Kinds of lines (digits apart) that are remembered as seen. A log that has more repeats nothing: from there on only
#: lines with one of these words are looked at, so that a gigabyte of them costs no more than one of training.
_REMEMBERED = 100_000
_STEMS = tuple(
    b"error fail support cuda invalid exception assert kill memory missing cannot unable illegal abort".split()
)
#: Matched lines that are kept, the first ones: what comes later follows from them.
_KEPT = 400
_CONTEXT = 60
#: Last lines, and characters of each, whose words count beside those of matched lines.
_LAST, _LAST_LENGTH = 20, 600
#: Letters by which anchors are looked up: each line is cut into all of its pieces of this length once.
_PIECE = 2
_DIGITS = b"0123456789"
_ABOUT = re.compile(
    r"capabilit|compiled for|torch|cuda|driver|gpu|device|nvidia|radeon|gfx|arc |apple|windows|\.dll|dtype|half"
    r"|float|bit",
    re.IGNORECASE,
)
#: A program that goes on after an error says so; the error is then no cause.
_SURVIVED = re.compile(
    r"(?i)\b(?:retry(?:ing)?\b|falling back|fall back to|will be ignored|skipping|using .{0,30} instead"
    r"|disabl(?:ed|ing)|continuing)"
)
_WARNING = re.compile(r"(?i)\bwarn(?:ing)?\b|\bW(?:ARN)?\]|UserWarning|FutureWarning|^\[W:|\bINFO\b|\bDEBUG\b")


@dataclass(frozen=True)
class Hit:
    """A signature found in a line; ``survived`` where the program went on."""

    signature: Signature
    number: int
    line: str
    words: str
    facts: FrozenDict[str] = EMPTY
    survived: bool = False
    warning: bool = False


@dataclass
class Reading:
    """What is kept of a log: hits in the order of its lines, lines about device and software, and the last lines."""

    hits: list[Hit] = field(default_factory=list)
    about: list[str] = field(default_factory=list)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST))


def read(chunks: Iterable[bytes]) -> Reading:
    """Goes through a stream in UTF-8 once; memory stays bounded whatever its size."""
    reading = Reading()
    seen: set[int] = set()
    for first, block in blocks(chunks):
        kinds = list(map(hash, block.translate(None, _DIGITS).split(b"\n")))
        if seen.issuperset(kinds):
            continue
        full = len(seen) > _REMEMBERED
        for offset, line in enumerate(block.split(b"\n")):
            if kinds[offset] in seen or (full and not _telling(line)):
                continue
            if len(seen) < 2 * _REMEMBERED:
                seen.add(kinds[offset])
            for state in states(line):
                _look(reading, first + offset, plain(state))
    return reading


def _telling(line: bytes) -> bool:
    """Whether a line of a log that repeats nothing is worth a look."""
    low = line.lower()
    return any(stem in low for stem in _STEMS)


def _look(reading: Reading, number: int, line: str) -> None:
    reading.last.append(line[:_LAST_LENGTH])
    if len(reading.hits) < _KEPT:
        found = _matches(line)
        specific = [item for item in found if not item[0].general] or found
        survived, warning = bool(_SURVIVED.search(line)), bool(_WARNING.search(line))
        for signature, match in specific:
            facts = FrozenDict({key: value for key, value in match.groupdict().items() if value})
            reading.hits.append(Hit(signature, number, line.strip()[:600], match[0][:200], facts, survived, warning))
        if survived and not specific and reading.hits and reading.hits[-1].number >= number - 2:
            reading.hits[-1] = replace(reading.hits[-1], survived=True)
    if len(reading.about) < _CONTEXT and _ABOUT.search(line):
        reading.about.append(line[:1_000])


def _matches(line: str) -> list[tuple[Signature, re.Match[str]]]:
    low = line.lower()
    found = []
    always, index = _index()
    tried: dict[int, Signature] = {}
    for piece in {low[start : start + _PIECE] for start in range(len(low))} & index.keys():
        for word, rows in index[piece]:
            if word in low:
                tried |= {id(signature): signature for signature in rows}
    for signature in (*always, *tried.values()):
        match = signature.pattern.search(line)
        if match:
            found.append((signature, match))
    return found


@functools.cache
def _index() -> tuple[tuple[Signature, ...], dict[str, list[tuple[str, tuple[Signature, ...]]]]]:
    """Signatures without an anchor; and by the last letters of each anchor, the anchor and what it stands for."""
    always: list[Signature] = []
    by_word: dict[str, list[Signature]] = {}
    for signature in signatures():
        words = signature.anchors
        if not words or min(map(len, words)) < _PIECE:
            always.append(signature)
            continue
        for word in words:
            by_word.setdefault(word, []).append(signature)
    by_piece: dict[str, list[tuple[str, tuple[Signature, ...]]]] = {}
    for word, rows in by_word.items():
        by_piece.setdefault(word[-_PIECE:], []).append((word, tuple(rows)))
    return tuple(always), by_piece
