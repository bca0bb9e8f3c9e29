"""Compiles grammars in a process of its own; a script of ``rung.run.script_process``.

A grammar is a program that a client wrote. llguidance has limits of its own, but not on everything: what takes too
long or too much memory costs the client an error.

A request is ``{"kind", "text", "seconds"}``, an answer ``{"grammar"}`` in llguidance's own form, or ``{"error"}``.
"""

from __future__ import annotations

import re
from typing import Any

import llguidance

from rung.server.child.schemas.forms import enforceable_schema

#: JSON without blanks that nobody needs: a model might write them for ever; and no character as its number, which would
#: hide the name of a property.
_COMPACT: Any = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "json_allowed_escapes": 'nrbtf\\"',
}
#: Words for what llguidance says in its own, by the beginning of that.
_REASONS = {
    "NoExtensionBias": "nothing that can be written is of it: what it asks for contradicts itself",
    "parser error: Too many items": "it is too large, or leads back to itself before it asks for a character",
    "lexer error: ": "a `pattern`, `multipleOf` or regular expression of it is too large",
    "lookarounds not supported": "^, $ or an edge of words within a `pattern` or regular expression cannot be enforced",
    "patternProperty regexes": "`patternProperties` cannot be enforced where two patterns may be of one name",
}
#: What is wrong with a regular expression; it stands below what was read of that.
_WRONG_PATTERN = re.compile(r"regex parse error:.*?\nerror: ([^\n]+)", re.DOTALL)
_END = 256
#: Tokens of an answer of which the masks are computed, too.
_WALK = 64


class _Bytes:
    """A vocabulary of all bytes."""

    eos_token_id, bos_token_id, special_token_ids = _END, None, (_END,)
    tokens = (*(bytes([byte]) for byte in range(_END)), b"<end>")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=_END + 1, eos_token=[_END])


def _compiled(kind: str, text: str) -> str:
    """Return a grammar in llguidance's own form. Raises ``ValueError`` for one that is none, too large, or that cannot
    be enforced."""
    if kind == "json_schema":
        found = llguidance.LLMatcher.grammar_from_json_schema(enforceable_schema(text), overrides=_COMPACT)
    else:
        found = llguidance.grammar_from(kind, text)  # type: ignore[arg-type]  # checked by the request
    matcher = llguidance.LLMatcher(_TOKENIZER, found, log_level=0)
    for step in range(_WALK):
        mask = int.from_bytes(matcher.compute_bitmask(), "little") if not matcher.is_error() else 0
        able = [byte for byte in range(_END) if mask >> byte & 1]
        if not able:
            break
        matcher.try_consume_tokens([able[step * 7919 % len(able)]])
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return str(found)


def _reason(error: str) -> str:
    if (wrong := _WRONG_PATTERN.search(error)) is not None:
        return f"a `pattern` or regular expression of it is none: {wrong[1]}"
    return next((words for begun, words in _REASONS.items() if error.startswith(begun)), error)


def answer(request: dict[str, str]) -> dict[str, str]:
    """Return the grammar, or the error. Raises ``MemoryError``."""
    try:
        return {"grammar": _compiled(request["kind"], request["text"])}
    except ValueError as error:
        return {"error": _reason(str(error))}
