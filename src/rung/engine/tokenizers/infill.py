"""Prompts with a hole: what stands before it and after it, in the tokens by which models were trained to fill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rung.core.errors import UsageError
from rung.engine.tokenizers.gguf import AROUND_A_HOLE, LAST_OF_A_FILE
from rung.engine.tokenizers.tokenizer import Tokenizer

#: Text before a file where the vocabulary has no token for that, as llama.cpp has it.
_SNIPPET = "\n\n--- snippet ---\n\n"


def infill_ids(
    tokenizer: Tokenizer, prefix: str, suffix: str, prompt: str = "", extra: Sequence[Mapping[str, str]] = ()
) -> list[int]:
    """Return the ids of a prompt whose answer stands between ``prefix`` with ``prompt`` behind it and ``suffix``.

    ``extra`` are other files (``filename``, ``text``) that stand before, in the repository's form of Qwen2.5-Coder
    (arXiv 2409.12186) as llama.cpp writes it. Raises ``UsageError`` for a vocabulary without tokens for that.
    """
    around = {name: _find(tokenizer, texts) for name, texts in AROUND_A_HOLE.items()}
    if missing := [name for name, token in around.items() if token is None]:
        raise UsageError(
            "The model fills no holes: its vocabulary has no tokens for what stands before and after one.",
            [f"missing: {', '.join(missing)}"],
            ["a model of code, such as Qwen2.5-Coder"],
        )
    before, after, hole = (token for token in around.values() if token is not None)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special=False, bos=False)

    start = [] if tokenizer.bos is None else tokenizer.encode("", bos=True)
    files = _files(tokenizer, extra) if extra else []
    return [*files, *start, before, *encode(prefix), *encode(prompt), after, *encode(suffix), hole]


def _files(tokenizer: Tokenizer, extra: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the ids of other files, and of the beginning of the one with the hole."""
    repository, separator = (_find(tokenizer, LAST_OF_A_FILE[name]) for name in ("fim_rep", "fim_sep"))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special=False, bos=False)

    found = [] if repository is None else [repository, *encode("myproject\n")]
    for file in extra:
        head = encode(_SNIPPET) if separator is None else [separator, *encode(f"{file['filename']}\n")]
        found += [*head, *encode(file["text"])]
    return found if separator is None else [*found, separator, *encode("filename\n")]


def _find(tokenizer: Tokenizer, texts: Sequence[str]) -> int | None:
    """Return the token of the first text that is one token."""
    for text in texts:
        ids = tokenizer.encode(text, bos=False)
        if len(ids) == 1:
            return ids[0]
    return None
