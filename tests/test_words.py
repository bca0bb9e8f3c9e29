"""The words of names and docstrings, as docs/glossary.md has them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
DENIED = set(re.search(r"`(kitchen [a-z ]+)`", GLOSSARY).group(1).split())
OPENINGS = re.compile(r"(What|Whether|Of|Those|Who|In which|Lets|Return what)\b")


#: Folders whose names the deny list holds for.
FOLDERS = ("src/rung", "tests", "benchmarks", "training")


class Words(NamedTuple):
    """Names with their lines, and docstrings, of the file at `path`, which is relative to the root."""

    path: Path
    names: list[tuple[int, str]]
    docstrings: list[str]


@functools.cache
def files() -> list[Words]:
    """Return the words of all Python files of the folders; read once, and no tree is kept."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [words_of(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in paths]


def words_of(path: Path, program: str) -> Words:
    """Return names and docstrings of a program."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = list(ast.walk(ast.parse(program)))
    docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    return Words(path, [name for node in nodes for name in names_of(node)], docstrings)


@functools.cache
def words(name: str) -> set[str]:
    """Return the words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_the_glossary_has_forty_words_in_order_each_in_one_line() -> None:
    rows = re.findall(r"^\| (?!word|-)(.+?) \| (.+?) \|$", GLOSSARY, re.MULTILINE)
    names = [name.lower() for name, _ in rows]
    assert 20 < len(names) <= 40
    assert names == sorted(set(names))
    assert [name for name, meaning in rows if len(meaning) > 110] == []


#: Names that answers in JSON, version 0.1 and asyncio have, and a word of statistics.
KEPT = {
    *("src/rung/conversion/within_budget.py held_out", "src/rung/training/tune.py held_out"),
    *(
        "src/rung/pipelines/folders.py told",
        "src/rung/planning/answers/values.py as_asked",
        "src/rung/planning/pipeline.py held",
        "src/rung/models/card.py held",
        "benchmarks/serve.py connection_made",
    ),
}


def names_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a node defines: a function, class, argument, variable or field."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.lineno, node.name
        case ast.arg():
            yield node.lineno, node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.lineno, node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.lineno, node.attr
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
            yield node.lineno, name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield node.lineno, name


def denied_names(file: Words) -> list[str]:
    """Return the names of a file with a word of the deny list; names of tests are sentences and may have them."""
    return [
        f"{file.path}:{line} {name}"
        for line, name in file.names
        if words(name) & DENIED and not name.startswith("test_") and f"{file.path} {name}" not in KEPT
    ]


def test_no_name_has_a_word_of_the_deny_list() -> None:
    assert {"kitchen", "beside", "place"} <= DENIED
    assert words("LlamaBesideCPU_held") == {"llama", "beside", "cpu", "held"}
    assert {file.path.parts[0] for file in files()} == {"src", "tests", "benchmarks", "training"}
    assert [name for file in files() for name in denied_names(file)] == []


def test_names_with_a_word_of_the_deny_list_are_found() -> None:
    program = """
import numpy as made
def test_that_was_asked(asked, *told, fine):
    a.held = place = [seen for seen in fine]
    class Beside:
        pass
    try:
        match fine:
            case [*wanted, {"x": hearing}]:
                pass
    except OSError as given:
        pass
"""
    found = {name.split()[1] for name in denied_names(words_of(Path("x.py"), program))}
    assert found == {"made", "asked", "told", "held", "place", "seen", "Beside", "wanted", "hearing", "given"}


def test_docstrings_do_not_open_with_a_question() -> None:
    found = [f"{file.path}: {text[:60]}" for file in files() for text in file.docstrings if OPENINGS.match(text)]
    assert found == []
