"""Logs as lines: any encoding, any size, without colours, markup and progress bars."""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterable, Iterator

#: Characters of a line that are read, at its beginning and at its end.
_HEAD, _TAIL = 4_000, 1_000
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_MARKUP = re.compile(r"</?(?:span|pre|div|p|b|i|code|font|br|a)\b[^<>]{0,300}>", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def encoding_of(head: bytes) -> str:
    """The encoding of a log by its first bytes: UTF-16 as Windows' shells write it, else UTF-8."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    sample = head[:400]
    if len(sample) >= 8 and sample[1::2].count(0) > len(sample) // 3:
        return "utf-16-le"
    if len(sample) >= 8 and sample[0::2].count(0) > len(sample) // 3:
        return "utf-16-be"
    return "utf-8"


def decode(chunks: Iterable[bytes]) -> Iterator[str]:
    """Text of a stream of bytes; bytes that are no text become replacement characters."""
    decoder: codecs.IncrementalDecoder | None = None
    for chunk in chunks:
        if decoder is None:
            decoder = codecs.getincrementaldecoder(encoding_of(chunk))(errors="replace")
        yield decoder.decode(chunk)


def lines(texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(line number from 1, line) of a stream of texts; a carriage return begins a new state of the same line.

    A line longer than 5,000 characters keeps its first 4,000 and its last 1,000.
    """
    number, rest = 1, ""
    for text in texts:
        pieces = (rest + text).split("\n")
        rest = _shortened(pieces.pop())
        for piece in pieces:
            yield from _states(number, piece)
            number += 1
    if rest:
        yield from _states(number, rest)


def _shortened(line: str) -> str:
    return line if len(line) <= _HEAD + _TAIL else line[:_HEAD] + " " + line[-_TAIL:]


def _states(number: int, line: str) -> Iterator[tuple[int, str]]:
    line = _shortened(line)
    if "\r" not in line:
        yield number, line
        return
    for state in line.split("\r"):
        if state:
            yield number, state


def plain(line: str) -> str:
    """A line without terminal colours, markup, entities and control characters."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "<" in line and ">" in line:
        line = _MARKUP.sub("", line)
    if "&" in line and ";" in line:
        line = html.unescape(line)
    return _CONTROL.sub("", line)
