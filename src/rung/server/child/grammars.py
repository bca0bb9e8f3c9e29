"""Answers of a form that a request names: masks of tokens by llguidance, of JSON schemas, regular expressions and GBNF.

Imported by engines only. A grammar is compiled where a request is prepared, beside the steps of others: first in a
process of its own with limits on time and memory (``grammar_check.py``), then here. The last few are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import llguidance
import numpy as np
import numpy.typing as npt

from rung.core.errors import UsageError
from rung.engine.model import Model
from rung.engine.scheduling.kv_cache import common_length
from rung.engine.scheduling.sequence import MOST_ROWS
from rung.run.script_process import ScriptProcess
from rung.server.protocol import Grammar

#: Seconds that a grammar may take to compile, and grammars that are kept.
SECONDS, _KEPT = 2.0, 16
_SCRIPT = Path(__file__).with_name("grammar_check.py")


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
        self._count, self._end = model.backend.vocabulary, ends[0]
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(model, ends))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=self._count, eos_token=ends)
        self._lock = threading.Lock()
        self._check: ScriptProcess | None = None
        self._matchers: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()

    def compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        """Return the matcher of a grammar. Raises ``UsageError`` for one that is none, is too large, takes too long, or
        uses what llguidance does not hold. Any thread may call."""
        with self._lock:
            if (known := self._matchers.get(grammar)) is not None:
                self._matchers.move_to_end(grammar)
                return known
            matcher = llguidance.LLMatcher(self._tokenizer, self._checked(grammar), log_level=0)
            if matcher.is_error():
                raise _refused(grammar, matcher.get_error())
            self._matchers[grammar] = matcher
            if len(self._matchers) > _KEPT:
                self._matchers.popitem(last=False)
            return matcher

    def _checked(self, grammar: Grammar) -> str:
        """Return a grammar in llguidance's own form, once another process has compiled it. Raises ``UsageError``."""
        self._check = self._check or ScriptProcess(_SCRIPT)
        request = {"kind": grammar.kind, "text": grammar.text, "seconds": SECONDS}
        found = self._check.ask(request, 2 * SECONDS)  # it ends itself before
        if found is None:
            self._check.end()
            self._check = None
            raise _refused(grammar, f"it takes more than {SECONDS:g} s, or too much memory, to compile")
        if "error" in found:
            raise _refused(grammar, found["error"])
        return str(found["grammar"])

    def mask(self, matcher: llguidance.LLMatcher) -> Mask:
        """Return the mask of one answer."""
        return Mask(matcher.deep_copy(), self._count, self._end)


def _refused(grammar: Grammar, reason: str) -> UsageError:
    first = reason.strip().partition("\n")[0][:300]
    return UsageError(f"The {grammar.kind.replace('_', ' ')} cannot be met: {first}", code="grammar-invalid")


class Mask:
    """Say which tokens may follow an answer; see ``rung.engine.sampling.TokenMask``."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int, end: int) -> None:
        self._matcher, self._read, self._end = matcher, list[int](), end
        self._words, self._bytes = -(-vocabulary // 64), -(-vocabulary // 32) * 4

    def __call__(self, answer: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Return words of 64 tokens. Raises ``UsageError`` where the grammar meets a limit."""
        self._read_to(answer)
        words = np.zeros(self._words, np.uint64)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, self._bytes)
        if self._matcher.is_error():
            raise UsageError(f"The grammar ended the answer: {self._matcher.get_error()[:300]}", code="grammar-invalid")
        return words

    def forced(self, answer: Sequence[int]) -> list[int]:
        """Return the tokens that must follow, as many as fit a step with the one before, and one that ends an answer
        that is whole.

        Each is found for itself, as the mask at its place would let it through: the text of all that follow may fall
        into other tokens where it does not begin at the first.
        """
        self._read_to(answer)
        found: list[int] = []
        while len(found) < MOST_ROWS - 1 and not self._matcher.is_error():
            if self._matcher.is_stopped():
                return [*found, self._end]
            if not (tokens := self._matcher.compute_ff_tokens()):
                break
            self._matcher.try_consume_tokens(tokens[:1])
            self._read.append(tokens[0])
            found.append(tokens[0])
        return found

    def _read_to(self, answer: Sequence[int]) -> None:
        """Have the matcher stand behind the tokens of an answer."""
        same = common_length(self._read, answer)
        if same < len(self._read):
            self._matcher.rollback(len(self._read) - same)
        self._matcher.try_consume_tokens(list(answer[same:]))
        self._read = list(answer)
