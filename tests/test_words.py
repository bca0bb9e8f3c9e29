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


#: Folders whose names the deny list holds for.
FOLDERS = ("src/rung", "tests", "benchmarks", "training")


@functools.cache
def trees() -> list[tuple[Path, ast.Module]]:
    """Return the Python files of all folders, relative to the root, with their trees; read once."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [(path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


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
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def denied_names(path: Path, tree: ast.Module) -> list[str]:
    """Return the names in `tree` with a word of the deny list; names of tests are sentences and may have them."""
    return [
        f"{path}:{line} {name}"
        for line, name in all_names(tree)
        if words(name) & DENIED and not name.startswith("test_") and f"{path} {name}" not in KEPT
    ]


def test_no_name_has_a_word_of_the_deny_list() -> None:
    assert {"kitchen", "beside", "place"} <= DENIED
    assert words("LlamaBesideCPU_held") == {"llama", "beside", "cpu", "held"}
    assert {path.parts[0] for path, _ in trees()} == {"src", "tests", "benchmarks", "training"}
    assert [name for path, tree in trees() for name in denied_names(path, tree)] == []


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
    found = {name.split()[1] for name in denied_names(Path("x.py"), ast.parse(program))}
    assert found == {"made", "asked", "told", "held", "place", "seen", "Beside", "wanted", "hearing", "given"}


def test_docstrings_do_not_open_with_a_question() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path}: {text[:60]}"
        for path, tree in trees()
        if path.parts[0] == "src"
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node) or "") and OPENINGS.match(text)
    ]
    assert found == []
