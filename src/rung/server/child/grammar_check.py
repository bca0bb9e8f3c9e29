"""Compiles grammars in a process of its own; started by ``rung.server.child.grammars`` as a script.

A grammar is a program that a client wrote. llguidance has limits of its own, but not on everything: what takes too
long or too much memory ends this process, by a timer and a limit of it, and costs the client an error.

Requests and answers are JSON, one a line: ``{"kind", "text", "seconds"}`` to ``{"grammar"}`` in llguidance's own form,
or ``{"error"}``.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import Any

import llguidance

_MOST_MEMORY = 768 * 2**20
#: JSON without blanks that nobody needs: a model might write them for ever.
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
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
    """Return a grammar in llguidance's own form. Raises ``ValueError`` for one that is none, or too large."""
    if kind == "json_schema":
        found = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_COMPACT)
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


def _answer(line: str) -> dict[str, str]:
    request = json.loads(line)
    _set_timer(request["seconds"])
    try:
        return {"grammar": _compiled(request["kind"], request["text"])}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except ValueError as error:
        return {"error": str(error)}
    finally:
        _set_timer(0)


def _set_timer(seconds: float) -> None:
    """Let the system end this process after ``seconds``, or not any more (0)."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Answer requests until the other side closes."""
    with contextlib.suppress(ImportError):  # where Python cannot limit memory, time alone is limited
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(line)), flush=True)


if __name__ == "__main__":
    main()
