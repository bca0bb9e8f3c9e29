"""Files of SentencePiece (``tokenizer.model``): the part of their protocol buffer that a vocabulary needs.

The message is ``ModelProto`` of github.com/google/sentencepiece, ``src/sentencepiece_model.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rung.core.errors import BadFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Piece:
    """One token: its text with ``▁`` for a space, its score, and its type, whose numbers GGUF shares."""

    text: str
    score: float
    kind: int


def read(data: bytes, name: str) -> list[Piece]:
    """The pieces of a file. Raises ``BadFile`` for one that is not of SentencePiece."""
    try:
        found = [_piece(value) for field, value in _fields(data) if field == 1 and isinstance(value, bytes)]
    except (LookupError, ValueError, struct.error) as error:
        raise BadFile(f"{name} is no vocabulary of SentencePiece: {error}") from error
    if not found:
        raise BadFile(f"{name} holds no vocabulary of SentencePiece")
    return found


def _piece(data: bytes) -> Piece:
    values = dict(_fields(data))
    text, score, kind = values[1], values.get(2, b"\0\0\0\0"), values.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece has fields of other types")
    return Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if at + length > len(data):
            raise ValueError("it ends inside of a field")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
