"""Arrays of a GGUF file's metadata, turned into Python values only when somebody looks at them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

_AT_ONCE = 2**16


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
        begins = self._offsets.tolist()
        ends = [*begins[1:], len(self._data)]
        data = self._data
        return [data[begin + 8 : end].decode("utf-8", "replace") for begin, end in zip(begins, ends, strict=False)]

    def find(self, texts: Iterable[str]) -> dict[str, int]:
        """The first index of each of ``texts`` that is there, without decoding the others."""
        wanted = {text.encode(): text for text in texts}
        lengths = np.unique([len(raw) for raw in wanted])
        firsts = np.unique([raw[0] for raw in wanted if raw])
        letters = np.frombuffer(self._data, np.uint8)
        found: dict[str, int] = {}
        for start in range(0, len(self), _AT_ONCE):
            begins = self._offsets[start : start + _AT_ONCE + 1].astype(np.int64)
            if start + _AT_ONCE >= len(self):
                begins = np.append(begins, len(self._data))
            texts_at, sizes = begins[:-1] + 8, np.diff(begins) - 8
            likely = np.isin(sizes, lengths) & np.isin(letters[np.minimum(texts_at, len(letters) - 1)], firsts)
            for index in np.flatnonzero(likely).tolist():
                raw = self._data[texts_at[index] : texts_at[index] + sizes[index]]
                if raw in wanted:
                    found.setdefault(wanted[raw], start + index)
        return found
