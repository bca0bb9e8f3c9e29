"""Logs as lines: any encoding, any size, without colors, markup and progress bars."""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterable, Iterator

#: Bytes of a line that are read, at its beginning and at its end.
_HEAD, _TAIL = 4_000, 1_000
#: A line of which one letter in so many could not be decoded is no text.
_NO_TEXT = 10
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_MARKUP = re.compile(
    r"</?(?:span|pre|div|p|b|i|code|font|a|strong|em|u|samp|kbd|tt|mark|small|table|tbody|tr|li|ul|ol|section"
    r"|h[1-6]|html|body)\b[^<>]{0,300}>",
    re.IGNORECASE,
)
#: Between what such a tag parts stands a space.
_BREAK = re.compile(r"<(?:br|/?td|/?th|hr)\b[^<>]{0,300}>", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
#: Spaces of web pages, word processors and chats.
_SPACE = re.compile(r"[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")

#: A file outside of installed packages, as a traceback names it, and as a notebook does.
_OWN_FILE = re.compile(
    r"""(?:(\bFile ["'])(?![^"'\n]{0,300}(?:(?:site|dist)-packages|\.\.\.)[/\\])[^"'\n]{1,400}(?=["'], line \d)"""
    r"""|(?m:^)[^ \n]{0,200}(?:<ipython-input-|[/\\]ipykernel_)[^ \n]{1,200}(?= in \S))"""
)


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


def is_text(line: str) -> bool:
    """Return whether nearly all of a line could be decoded."""
    return line.count("\ufffd") * _NO_TEXT <= len(line)


def utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The stream as UTF-8, whatever it was written in; bytes that are no text stay as they are."""
    decoder: codecs.IncrementalDecoder | None = None
    known = False
    for chunk in chunks:
        if not known:
            known, encoding = True, encoding_of(chunk)
            if encoding != "utf-8":
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")


def blocks(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number of its first line from 1, some whole lines) of a stream in UTF-8, each line as it is but for the longest.

    A line that goes on over chunks keeps its first 4,000 and its last 1,000 bytes.
    """
    number, rest = 1, b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            block = rest + chunk[:end]
            yield number, block[:-1]
            number, rest = number + block.count(b"\n"), b""
        rest = _shortened(rest + chunk[end:])
    if rest:
        yield number, rest


def _shortened(line: bytes) -> bytes:
    return line if len(line) <= _HEAD + _TAIL else line[:_HEAD] + b" " + line[-_TAIL:]


def states(line: bytes) -> list[str]:
    """Return the states that a line showed, one after the other: a carriage return begins a new state of the same
    line."""
    return [_shortened(state).decode("utf-8", "replace") for state in line.split(b"\r") if state]


def lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """(line number from 1, line or state of a line) of a stream in UTF-8."""
    for first, block in blocks(chunks):
        for number, line in enumerate(block.split(b"\n"), first):
            for state in states(line) or [""]:
                yield number, state


def plain(line: str) -> str:
    """A line without terminal colors, markup, entities and control characters; every space is a plain one."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "<" in line and ">" in line:
        line = _MARKUP.sub("", _BREAK.sub(" ", line))
    if "&" in line and ";" in line:
        line = html.unescape(line)
    if not line.isascii():
        line = _SPACE.sub(" ", line)
    return _CONTROL.sub("", line)


def unnamed(text: str) -> str:
    """Lines without the paths of a program's own files: what somebody called a file says nothing of an error in it."""
    return _OWN_FILE.sub(r"\1", text) if "File " in text or "ipy" in text else text
