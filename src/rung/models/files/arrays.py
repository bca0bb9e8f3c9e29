"""Arrays of a GGUF file's metadata, turned into Python values only when somebody looks at them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload


class Numbers(Sequence[Any]):
    """An array of numbers or booleans; ``code`` is their type as ``array`` names it, little-endian as in the file."""

    def __init__(self, data: bytes, code: str, boolean: bool = False) -> None:
        self._array = array(code, data)
        self._boolean = boolean

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        part = self._array[index]
        if isinstance(part, array):
            return [bool(value) for value in part] if self._boolean else part.tolist()
        return bool(part) if self._boolean else part

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        """All values, as Python's."""
        return list(self[:])


class Strings(Sequence[str]):
    """An array of strings, kept as the bytes of the file (8 bytes of length, then UTF-8) and where each begins.

    Bytes that are no UTF-8 become U+FFFD: some vocabularies have such tokens.
    """

    def __init__(self, data: bytes, offsets: array[int]) -> None:
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(begin) for begin in self._offsets[index]]
        return self._text(self._offsets[index])

    def _text(self, begin: int) -> str:
        end = begin + 8 + int.from_bytes(self._data[begin : begin + 8], "little")
        return self._data[begin + 8 : end].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings."""
        begins = self._offsets.tolist()
        ends = [*begins[1:], len(self._data)]
        data = self._data
        return [data[begin + 8 : end].decode("utf-8", "replace") for begin, end in zip(begins, ends, strict=False)]

    def find(self, texts: Iterable[str]) -> dict[str, int]:
        """The first index of each of ``texts`` that is there, without decoding the others."""
        found = {text: self._first(text.encode()) for text in texts}
        return {text: index for text, index in found.items() if index is not None}

    def _first(self, raw: bytes) -> int | None:
        stored = len(raw).to_bytes(8, "little") + raw
        at = self._data.find(stored)
        while at >= 0:  # the same bytes may stand inside of another string
            index = bisect_left(self._offsets, at)
            if index < len(self._offsets) and self._offsets[index] == at:
                return index
            at = self._data.find(stored, at + 1)
        return None
