"""Reads a log once and keeps what counts: the lines that signatures match, and what stands about the device."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rung.core.types import EMPTY
from rung.core.value import FrozenDict
from rung.diagnosis.anchors import anchors
from rung.diagnosis.log import plain
from rung.diagnosis.match import Signature, signatures

#: Kinds of lines (digits apart) that are remembered as seen: beyond, a log repeats nothing worth remembering.
_REMEMBERED = 200_000
#: Matched lines that are kept, the first ones: what comes later follows from them.
_KEPT = 400
_CONTEXT = 60
#: Letters by which anchors are looked up: each line is cut into all of its pieces of this length once.
_PIECE = 2
_DIGITS = str.maketrans("", "", "0123456789")
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
    """What is kept of a log: hits in the order of its lines, lines about device and software, and its size."""

    hits: list[Hit] = field(default_factory=list)
    about: list[str] = field(default_factory=list)
    count: int = 0


def read(numbered: Iterable[tuple[int, str]]) -> Reading:
    """Goes through (number, line) once; memory stays bounded whatever the size."""
    reading = Reading()
    seen: set[str] = set()
    for number, raw in numbered:
        reading.count = number
        key = raw.translate(_DIGITS)
        if key in seen:
            continue
        if len(seen) < _REMEMBERED:
            seen.add(key)
        _look(reading, number, plain(raw))
    return reading


def _look(reading: Reading, number: int, line: str) -> None:
    if len(reading.hits) < _KEPT:
        found = _matches(line)
        specific = [item for item in found if not item[0].general] or found
        survived, warning = bool(_SURVIVED.search(line)), bool(_WARNING.search(line))
        for signature, match in specific:
            facts = FrozenDict({key: value for key, value in match.groupdict().items() if value})
            reading.hits.append(Hit(signature, number, line.strip()[:600], match[0][:200], facts, survived, warning))
        if survived and not specific and reading.hits and reading.hits[-1].number >= number - 2:
            last = reading.hits[-1]
            reading.hits[-1] = Hit(last.signature, last.number, last.line, last.words, last.facts, True, last.warning)
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
        words = anchors(signature.text)
        if not words or min(map(len, words)) < _PIECE:
            always.append(signature)
            continue
        for word in words:
            by_word.setdefault(word, []).append(signature)
    by_piece: dict[str, list[tuple[str, tuple[Signature, ...]]]] = {}
    for word, rows in by_word.items():
        by_piece.setdefault(word[-_PIECE:], []).append((word, tuple(rows)))
    return tuple(always), by_piece
