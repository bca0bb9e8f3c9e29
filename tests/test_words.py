"""The words of names and docstrings, as docs/glossary.md has them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
DENIED = set(re.search(r"`(kitchen [a-z ]+)`", GLOSSARY).group(1).split())
OPENINGS = re.compile(r"(What|Whether|Of|Those|Who|In which|Lets|Return what)\b")


@functools.cache
def trees() -> list[tuple[Path, ast.Module]]:
    """Return the files of the package and what they hold; read where a test asks for it, and once."""
    paths = sorted((ROOT / "src/rung").rglob("*.py"))
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def words(name: str) -> set[str]:
    """Return the words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_the_glossary_has_forty_words_in_order_each_in_one_line() -> None:
    rows = re.findall(r"^\| (?!word|-)(.+?) \| (.+?) \|$", GLOSSARY, re.MULTILINE)
    names = [name.lower() for name, _ in rows]
    assert 20 < len(names) <= 40
    assert names == sorted(set(names))
    assert [name for name, meaning in rows if len(meaning) > 110] == []


#: Names that answers in JSON and version 0.1 have, and a word of statistics.
KEPT = {
    *("conversion/within_budget.py held_out", "training/tune.py held_out"),
    *(
        "pipelines/folders.py told",
        "planning/answers/values.py as_asked",
        "planning/pipeline.py held",
        "models/card.py held",
    ),
}


def all_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield lines and names of all that a file defines: functions, classes, arguments, variables and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def test_no_name_has_a_word_of_the_deny_list() -> None:
    assert {"kitchen", "beside", "place"} <= DENIED
    assert words("LlamaBesideCPU_held") == {"llama", "beside", "cpu", "held"}
    names = {name for _, name in all_names(ast.parse("def f(asked):\n  a.held = place = 1"))}
    assert names == {"f", "asked", "held", "place"}
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in trees()
        for line, name in all_names(tree)
        if words(name) & DENIED and f"{path.relative_to(ROOT / 'src/rung')} {name}" not in KEPT
    ]
    assert found == []


def test_docstrings_do_not_open_with_a_question() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}: {text[:60]}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node) or "") and OPENINGS.match(text)
    ]
    assert found == []
