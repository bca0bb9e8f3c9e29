"""Answers of a form that a request names: masks of tokens by llguidance, of JSON schemas, regular expressions and GBNF.

Imported by engines only. A grammar is compiled where a request is prepared, beside the steps of others, within
llguidance's limits on time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from rung.core.errors import UsageError
from rung.engine.model import Model
from rung.engine.scheduling.kv_cache import common_length
from rung.server.protocol import Grammar

#: JSON without blanks that nobody needs: a model might write them for ever.
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, model: Model, ends: Sequence[int]) -> None:
        tokenizer, count = model.tokenizer, model.backend.vocabulary
        self.eos_token_id, self.bos_token_id = ends[0], tokenizer.bos
        self.special_token_ids = [token for token in range(tokenizer.size) if tokenizer.is_control(token)]
        self.tokens = [tokenizer.piece(token) for token in range(count)]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text. Raises for bytes, which llguidance then does not send."""
        return self._tokenizer.encode(text, special=False, bos=False)


class Grammars:
    """Compile grammars for the vocabulary of a model."""

    def __init__(self, model: Model) -> None:
        ends = sorted({*model.card.end_tokens, *model.tokenizer.end_tokens})
        if not ends:
            raise UsageError(f"{model.card.name} has no end token, so an answer of a form would not end.")
        self._count = model.backend.vocabulary
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(model, ends))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=self._count, eos_token=ends)

    def compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        """Return the matcher of a grammar. Raises ``UsageError`` for one that is none, is too large, or uses what
        llguidance does not hold."""
        try:
            if grammar.kind == "json_schema":
                text = llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=_COMPACT)
            else:
                text = llguidance.grammar_from(grammar.kind, grammar.text)
        except ValueError as error:
            raise _refused(grammar, str(error)) from error
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher

    def mask(self, matcher: llguidance.LLMatcher) -> Mask:
        """Return the mask of one answer."""
        return Mask(matcher.deep_copy(), self._count)


def _refused(grammar: Grammar, reason: str) -> UsageError:
    first = reason.strip().partition("\n")[0][:300]
    return UsageError(f"The {grammar.kind.replace('_', ' ')} cannot be met: {first}", code="grammar-invalid")


class Mask:
    """Say which tokens may follow an answer; see ``rung.engine.sampling.TokenMask``."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher, self._read = matcher, list[int]()
        self._words, self._bytes = -(-vocabulary // 64), -(-vocabulary // 32) * 4

    def __call__(self, answer: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Return words of 64 tokens. Raises ``UsageError`` where the grammar meets a limit."""
        same = common_length(self._read, answer)
        if same < len(self._read):
            self._matcher.rollback(len(self._read) - same)
        self._matcher.try_consume_tokens(list(answer[same:]))
        self._read = list(answer)
        words = np.zeros(self._words, np.uint64)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, self._bytes)
        if self._matcher.is_error():
            raise UsageError(f"The grammar ended the answer: {self._matcher.get_error()[:300]}", code="grammar-invalid")
        return words
