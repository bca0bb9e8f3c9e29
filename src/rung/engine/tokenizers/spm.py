"""SentencePiece's merging by scores, for GGUF files of kind ``llama``.

Text becomes symbols (code points); the neighbors whose join is a token of the highest score are joined
first, of equal ones the leftmost, until nothing can be joined. What is no token then is spelled in bytes.
Source: Kudo and Richardson, SentencePiece (2018), and the merging that llama.cpp does on these files.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence

SPACE = "▁"
_CACHED_WORDS = 50_000
_LONGEST_CACHED = 64


class ScoreMerger:
    """Token ids of text by merging.

    ``ids`` maps tokens to ids, ``scores`` has a score for each id (higher joins earlier).
    """

    def __init__(self, ids: Mapping[str, int], scores: Sequence[float], unknown: int | None) -> None:
        self._ids = ids
        self._priority = [math.inf if math.isnan(score) else -score for score in scores]
        self._bytes = [self._byte(value, unknown) for value in range(256)]
        self._words: dict[str, tuple[int, ...]] = {}
        self._cut = self._boundaries(ids)

    def _byte(self, value: int, unknown: int | None) -> int | None:
        found = self._ids.get(f"<0x{value:02X}>")
        if found is None and value < 128:
            found = self._ids.get(chr(value))
        return unknown if found is None else found

    @staticmethod
    def _boundaries(ids: Mapping[str, int]) -> re.Pattern[str]:
        # No token holds "x▁" unless x is in `inside`: nothing joins across there, so words can be merged one
        # by one and remembered. The separator itself lands in `inside`, which only costs a cut.
        inside = set(re.findall(f"([^{SPACE}]){SPACE}", "\0".join(ids)))
        return re.compile(f"(?<=[^{re.escape(SPACE + ''.join(sorted(inside)))}])(?={SPACE})")

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, in which spaces have become ``▁`` already."""
        out: list[int] = []
        for word in self._cut.split(text):
            known = self._words.get(word)
            if known is None:
                known = tuple(self._merge(word))
                if len(word) <= _LONGEST_CACHED:
                    if len(self._words) >= _CACHED_WORDS:
                        self._words.clear()
                    self._words[word] = known
            out.extend(known)
        return out

    def _merge(self, word: str) -> list[int]:
        if (whole := self._ids.get(word)) is not None and len(word) == 1:
            return [whole]
        count = len(word)
        end = list(range(1, count + 1))  # symbol i is word[i:end[i]]; 0 once it has been joined to another
        before = list(range(-1, count - 1))
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < count:
                token = self._ids.get(word[left : end[right]])
                if token is not None:
                    heapq.heappush(queue, (self._priority[token], left, right, end[right]))

        for index in range(count - 1):
            offer(index, index + 1)
        while queue:
            _, left, right, stop = heapq.heappop(queue)
            if end[left] != right or end[right] != stop:
                continue  # one of the two has been joined meanwhile
            end[left], end[right] = stop, 0
            if stop < count:
                before[stop] = left
                offer(left, stop)
            offer(before[left], left)
        return self._spell(word, end)

    def _spell(self, word: str, end: list[int]) -> list[int]:
        out: list[int] = []
        start = 0
        while start < len(word):
            piece = word[start : end[start]]
            token = self._ids.get(piece)
            if token is not None:
                out.append(token)
            else:
                spelled = (self._bytes[value] for value in piece.encode("utf-8", "replace"))
                out.extend(value for value in spelled if value is not None)
            start = end[start]
        return out
