"""Reasoning of models before they answer: where it is open, and a mask that ends it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rung.engine.chat import REASONING_CLOSE, REASONING_OPEN
from rung.engine.tokenizers.tokenizer import Tokenizer

#: Tokens of a prompt that are looked at for the mark that opens reasoning.
_TAIL = 8


def is_open(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Return whether a prompt ends with the mark that opens reasoning, so that its answer begins within it."""
    return tokenizer.decode(prompt[-_TAIL:], special=True).rstrip().endswith(REASONING_OPEN)


class ReasoningBudget:
    """Mask tokens so that reasoning ends after ``budget`` tokens; see ``rung.engine.sampling.TokenMask``.

    ``is_open``: the answer begins within the reasoning. An answer that does not reason is left alone.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, budget: int, is_open: bool) -> None:
        open_ids = tokenizer.encode(REASONING_OPEN, bos=False)
        self._close = tokenizer.encode(REASONING_CLOSE, bos=False)
        self._open: list[int] = [] if is_open else open_ids
        self._budget, self._words = budget + len(self._open), -(-vocabulary // 64)

    def __call__(self, answer: Sequence[int]) -> npt.NDArray[np.uint64] | None:
        """Return the mask that lets the next token of the closing mark through, or None where any may follow."""
        count, close = len(self._close), self._close
        if not self._budget <= len(answer) < self._budget + 2 * count:  # within the budget, or closed by now
            return None
        if list(answer[: len(self._open)]) != self._open:
            return None
        if any(list(answer[start : start + count]) == close for start in range(len(answer) - count + 1)):
            return None
        written = next(length for length in range(count - 1, -1, -1) if _ends_with(answer, close[:length]))
        words = np.zeros(self._words, np.uint64)
        words[close[written] // 64] = np.uint64(1) << np.uint64(close[written] % 64)
        return words


def _ends_with(answer: Sequence[int], ids: Sequence[int]) -> bool:
    return list(answer[len(answer) - len(ids) :]) == list(ids)
