"""The header of a GGUF file that is far away, without the arrays of its vocabulary, which are most of its bytes.

Numbers have a length that is known, so they are stepped over. An array of texts has none; but a place inside of it can
be told from one behind it: it is the beginning of a chain of lengths and texts. So its end is found by bisection, with
a few reads of some kilobytes instead of megabytes of merges.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

#: ``read(first, count)`` gives those bytes of the file, fewer at its end.
Read = Callable[[int, int], bytes]

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
#: Bytes that are read at once, those that tell whether a place is inside of an array of texts, and the longest header.
_STEP, _WINDOW, _MOST = 1 << 16, 1 << 14, 1 << 26
#: Arrays up to these sizes are read and kept.
_FEW_TEXTS, _FEW_BYTES = 1 << 14, 1 << 16
#: In a vocabulary no text is longer, and so many in a row are no accident.
_LONGEST, _CHAIN = 1024, 16
_KEY = re.compile(rb"(?:tokenizer|general|quantize|split|adapter)\.[a-z0-9_.-]{1,200}")
_TENSOR = re.compile(rb"[A-Za-z0-9_.-]{1,127}")


class Lost(Exception):
    """This is no header, or an array's end was not found: the file is to be read from its beginning."""


class Far:
    """Walks over the header of a file of ``length`` bytes; ``short`` gives a smaller one, ``moved`` what it saves."""

    def __init__(self, read: Read, length: int) -> None:
        self._read, self._length = read, length
        self._begin, self._data = 0, b""
        self._at = 0

    def short(self) -> tuple[bytes, int]:
        """The header as a file has it that never had those arrays, and how many bytes later the real data begin.

        Raises ``Lost``.
        """
        magic = self._bytes(8)
        tensors, pairs = self._number(_U64), self._number(_U64)
        if magic[:4] != b"GGUF" or tensors > 1 << 20 or pairs > 1 << 20:
            raise Lost
        kept, alignment = [], 32
        for left in range(pairs, 0, -1):
            begin = self._at
            key = self._bytes(self._count(1 << 16))
            kind = self._number(_U32)
            value = self._value(kind, last=left == 1)
            if value is None:
                continue
            if key == b"general.alignment" and kind == 4:
                alignment = max(_U32.unpack(value)[0], 1)
            kept.append(self._since(begin))
        begin = self._at
        for _ in range(tensors):
            self._bytes(self._count(1 << 16))
            self._bytes(8 * min(self._number(_U32), 8) + 12)
        header = magic + _U64.pack(tensors) + _U64.pack(len(kept)) + b"".join(kept) + self._since(begin)
        data = -(-self._at // alignment) * alignment
        header += bytes(-len(header) % alignment)
        return header, data - len(header)

    def _value(self, kind: int, last: bool) -> bytes | None:
        """The value that begins here; None for a long array, which is stepped over."""
        if kind in _WIDTHS:
            return self._bytes(_WIDTHS[kind])
        if kind == _STRING:
            return self._bytes(self._count(1 << 24))
        if kind != _ARRAY:
            raise Lost
        of, count = self._number(_U32), self._number(_U64)
        if of == _STRING:
            return self._texts(count, last)
        if of not in _WIDTHS:
            raise Lost
        size = count * _WIDTHS[of]
        if size <= _FEW_BYTES:
            return self._bytes(size)
        self._at += size
        return None

    def _texts(self, count: int, last: bool) -> bytes | None:
        if count <= _FEW_TEXTS:
            for _ in range(count):
                self._bytes(self._count(1 << 24))
            return b""
        self._at = self._end_of_texts(count, last)
        return None

    def _end_of_texts(self, count: int, last: bool) -> int:
        # Between two arrays of texts, tokens and merges, lie numbers: four bytes for each token, too many to jump over.
        inside, step = self._at, min(_STEP, 2 * count)
        while self._chain(inside + step) is not None:
            inside, step = inside + step, min(2 * step, 2 * count)
        outside = inside + step
        while outside - inside > _WINDOW:
            middle = (inside + outside) // 2
            if self._chain(middle) is None:
                outside = middle
            else:
                inside = middle
        begin = self._at if inside == self._at else self._chain(inside)
        if begin is None:
            raise Lost
        data, at = self._read(begin, outside - begin + 2 * _WINDOW), 0
        while at + 8 <= len(data):
            length = _U64.unpack_from(data, at)[0]
            if _is_next(data, at + 8, length, last):
                return begin + at
            at += 8 + length
        raise Lost

    def _chain(self, at: int) -> int | None:
        """The first place from ``at`` on where a text begins, if texts fill a window there."""
        if at > min(self._length, _MOST):
            return None
        data = self._read(at, _WINDOW)
        for first in range(min(_LONGEST, len(data))):
            position, texts, full = first, 0, 0
            while position + 8 <= len(data):
                count = _U64.unpack_from(data, position)[0]
                if count > _LONGEST:
                    break
                position, texts, full = position + 8 + count, texts + 1, full + (count > 0)
            else:
                if texts >= _CHAIN and 2 * full > texts:
                    return at + first
        return None

    def _since(self, begin: int) -> bytes:
        return self._data[begin - self._begin : self._at - self._begin]

    def _count(self, most: int) -> int:
        count = self._number(_U64)
        if count > most:
            raise Lost
        return count

    def _number(self, kind: struct.Struct) -> int:
        return int(kind.unpack(self._bytes(kind.size))[0])

    def _bytes(self, count: int) -> bytes:
        """The next bytes. What was read before stays until something is stepped over."""
        if self._at > self._begin + len(self._data) or self._at < self._begin:
            self._begin, self._data = self._at, b""
        end = self._at + count
        missing = end - self._begin - len(self._data)
        if missing > 0:
            first = self._begin + len(self._data)
            self._data += self._read(first, max(missing, _STEP))
            if end > self._begin + len(self._data) or end > _MOST:
                raise Lost
        found = self._data[self._at - self._begin : end - self._begin]
        self._at = end
        return found


def _is_next(data: bytes, at: int, count: int, last: bool) -> bool:
    """Return whether the ``count`` bytes there name a key or, behind the ``last`` one, a tensor: its type or shape
    follows."""
    after = at + count
    if not 3 <= count <= 256 or after + 4 > len(data):
        return False
    found = _U32.unpack_from(data, after)[0]
    if not last:
        return bool(_KEY.fullmatch(data[at:after])) and found <= 12
    if not _TENSOR.fullmatch(data[at:after]) or not 1 <= found <= 4 or after + 4 + 8 * found > len(data):
        return False
    return all(0 < size < 2**31 for size in struct.unpack_from(f"<{found}Q", data, after + 4))
