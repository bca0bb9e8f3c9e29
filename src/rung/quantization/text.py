"""Make the text that a model is judged by where nobody names one, and cut texts into windows of tokens."""

from __future__ import annotations

import ast
import importlib.metadata
import pydoc_data.topics
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from rung.core.errors import UsageError
from rung.engine.chat import Template
from rung.engine.tokenizers.tokenizer import Tokenizer

#: Tokens of a text, at most.
TOKENS = 8192
#: Windows of each kind of the default text.
KINDS = {"prose": 6, "code": 6, "licences": 3, "chat": 3, "languages": 3}
#: Characters of an answer in a conversation.
_ANSWER = 800
#: What to do about a text that shows nothing.
OTHER_TEXT = ("--text FILE   # another text, in UTF-8", "leave out --text, for a text of all sorts")


def text_of(kind: str, characters: int, template: Template | None) -> str:
    """Return at most so many characters of a kind of text (``KINDS``) that every installation has.

    Help pages of Python, code of its standard library without docstrings, licences, help pages as answers to questions
    in the ``template`` of the model (nothing without one), or a page in many languages.
    """
    found: dict[str, Callable[[], Iterator[str]]] = {
        "prose": _prose,
        "code": _code,
        "licences": _licences,
        "chat": lambda: iter(()) if template is None else _conversations(template),
        "languages": lambda: iter([(Path(__file__).parent / "languages.txt").read_text(encoding="utf-8")]),
    }
    return _joined(found[kind](), characters)[:characters]


def windows(tokenizer: Tokenizer, text: str, length: int, most: int, special: bool = False) -> Tensor:
    """Return ids int64 [windows, length] of at most ``most`` tokens of a text; what is left of a window is cut off.

    ``special``: control tokens in the text, which templates write, become their ids. A text that is shorter than a
    window is one window of what it has. Raises ``UsageError`` for a text of one kind of token, which shows nothing of a
    model.
    """
    first = [tokenizer.bos] if tokenizer.adds_bos and tokenizer.bos is not None else []
    ids = tokenizer.encode(text[: 16 * most], special=special, bos=False)[:most]
    if len(set(ids)) < 2:
        raise UsageError(
            "The text is one token again and again, and shows nothing of a model." if ids else "The text is empty.",
            ways_out=OTHER_TEXT,
            code="input-empty",
        )
    piece = min(length - len(first), len(ids))
    cut = [first + ids[at : at + piece] for at in range(0, len(ids) - piece + 1, piece)]
    return torch.tensor(cut, dtype=torch.int64)


def _joined(texts: Iterator[str], characters: int) -> str:
    found, length = [], 0
    for text in texts:
        found.append(text)
        length += len(text)
        if length >= characters:
            break
    return "\n\n".join(found)


def _prose() -> Iterator[str]:
    for name in sorted(pydoc_data.topics.topics):
        yield pydoc_data.topics.topics[name]


def _conversations(template: Template) -> Iterator[str]:
    """Help pages, the last ones first: ``_prose`` begins with the others."""
    for name, text in sorted(pydoc_data.topics.topics.items(), reverse=True):
        question = f"What does the documentation of Python say about {name!r}?"
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text[:_ANSWER].strip()}]
        yield template.render(messages, answer=False)


def _code() -> Iterator[str]:
    """Modules of the standard library, each tenth first, so that a short text has some of all."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for path in [path for first in range(10) for path in paths[first::10]]:
        try:
            yield ast.unparse(_bare(ast.parse(path.read_text(encoding="utf-8"))))
        except (SyntaxError, UnicodeDecodeError, OSError, RecursionError):
            continue  # one module less; tests of the library hold some that are wrong on purpose


def _bare(tree: ast.Module) -> ast.Module:
    """Return the module without its docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = body[1:] or [ast.Pass()]
    return tree


def _licences() -> Iterator[str]:
    known = set()
    for each in sorted(importlib.metadata.distributions(), key=lambda one: str(one.metadata["Name"])):
        for file in each.files or ():
            if not any(word in file.name.upper() for word in ("LICENSE", "COPYING")):
                continue
            path = Path(str(file.locate()))
            text = path.read_text(encoding="utf-8", errors="ignore") if path.is_file() else ""
            if text and text not in known:
                known.add(text)
                yield text
