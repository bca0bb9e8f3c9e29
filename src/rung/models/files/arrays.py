"""Arrays of a GGUF file's metadata, turned into Python values only when somebody looks at them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

# No vocabulary is longer, and no text is a part of so many of its tokens: a search always ends soon.
_SEARCHED = 2**26
_MOST_LOOKS = 10_000


class Numbers(Sequence[Any]):
    """An array of numbers or booleans, kept as the bytes of the file."""

    def __init__(self, data: bytes, dtype: str, boolean: bool = False) -> None:
        self._array = np.frombuffer(data, dtype)
        self._boolean = boolean

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        part = self._array[index].tolist()
        if not self._boolean:
            return part
        return [bool(value) for value in part] if isinstance(index, slice) else bool(part)

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
        self._offsets = np.frombuffer(offsets, np.uint64)

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(int(begin)) for begin in self._offsets[index]]
        return self._text(int(self._offsets[index]))

    def _text(self, begin: int) -> str:
        end = begin + 8 + int.from_bytes(self._data[begin : begin + 8], "little")
        return self._data[begin + 8 : end].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings."""
        return self[:]

    def find(self, texts: Iterable[str]) -> dict[str, int]:
        """The first index of each of ``texts`` that is there, without decoding the others."""
        found = {}
        for text in texts:
            raw = text.encode()
            length, at = len(raw).to_bytes(8, "little"), -1
            for _ in range(_MOST_LOOKS):
                at = self._data.find(raw, at + 1, _SEARCHED)
                if at < 0:
                    break
                if self._data[at - 8 : at] == length and (index := self._index(at - 8)) is not None:
                    found[text] = index
                    break
        return found

    def _index(self, begin: int) -> int | None:
        """The index of the string that begins at that byte; None inside of one."""
        index = int(np.searchsorted(self._offsets, np.uint64(begin)))
        return index if index < len(self._offsets) and int(self._offsets[index]) == begin else None
