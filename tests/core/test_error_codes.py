"""The codes of errors: stable names, each of one class, each on the page that programs and people look them up on."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rung.core.errors import DoesNotFit, RungError, UsageError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/error-codes.md"


@functools.cache
def _trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted((ROOT / "src/rung").rglob("*.py"))]


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _code_of(body: list[ast.stmt]) -> str | None:
    for node in body:
        if isinstance(node, ast.Assign) and any(_name(target) == "code" for target in node.targets):
            assert isinstance(node.value, ast.Constant)
            return str(node.value.value)
    return None


@functools.cache
def _classes() -> dict[str, str | None]:
    """The code of each class of errors, by file and name."""
    nodes = [(path, node) for path, tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    errors, found = {"RungError"}, {}
    while True:
        known = len(found)
        for path, node in nodes:
            if node.name == "RungError" or any(_name(base) in errors for base in node.bases):
                errors.add(node.name)
                found[f"{path.relative_to(ROOT)}:{node.name}"] = _code_of(node.body)
        if len(found) == known:
            return found


def _narrower() -> set[str]:
    """The codes that are passed where an error is raised."""
    names = {name.split(":")[1] for name in _classes()}
    return {
        keyword.value.value
        for _, tree in _trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call.func) in names
        for keyword in call.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_class_has_a_code_of_its_own() -> None:
    classes = _classes()
    assert len(classes) > 25
    assert [name for name, code in classes.items() if not code] == []
    assert [code for code, number in Counter(classes.values()).items() if number > 1] == []


def test_codes_are_words_with_hyphens() -> None:
    codes = {*_classes().values(), *_narrower()}
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code or "")] == []


def test_the_page_lists_each_code_once_with_cause_and_what_to_do() -> None:
    rows = _rows()
    codes = [row[0].strip("` ") for row in rows]
    assert [code for code, number in Counter(codes).items() if number > 1] == []
    assert set(codes) == {*_classes().values(), *_narrower()}
    assert [row for row in rows if len(row) != 3 or min(map(len, row)) < 5] == []


def test_an_error_has_the_code_of_its_class_or_a_narrower_one() -> None:
    assert DoesNotFit("No.").code == "memory-does-not-fit"
    assert UsageError("No.").code == "wrong-argument"
    assert UsageError("No.", code="output-exists").code == "output-exists"
    assert UsageError("No.").code == "wrong-argument", "the class keeps its own"
    assert repr(UsageError("No.", code="output-exists")) == "UsageError('output-exists', 'No.')"
    assert str(UsageError("No.", code="output-exists")) == str(UsageError("No."))


@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (["check", "no-such-model", "--device", "p2200", "--json"], "model-unknown", 2),
        (["check", "gemma-2b", "--device", "p2299", "--json"], "device-unknown", 2),
        (["check", "gemma-2b", "--device", "p2200", "--context", "-4", "--json"], "value-out-of-range", 2),
    ],
)
def test_json_says_the_code(arguments: list[str], code: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-m", "rung", *arguments], capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert answer["code"] == code
    assert answer["error"]
    assert done.stderr.startswith(answer["error"])
    assert done.returncode == status


def test_json_of_several_models_says_the_code_of_the_one_without_an_answer() -> None:
    arguments = [sys.executable, "-m", "rung", "check", "gemma-2b", "no-such-model", "--device", "p2200", "--json"]
    lines = subprocess.run(arguments, capture_output=True, text=True).stdout.splitlines()
    assert [json.loads(line).get("code") for line in lines] == [None, "model-unknown"]


def test_root_of_errors_is_no_catch_all() -> None:
    """Each error that is raised says more than that it is one."""
    bare = [
        f"{path.name}:{call.lineno}"
        for path, tree in _trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and _name(call.func) == "RungError"
        and not any(keyword.arg == "code" for keyword in call.keywords)
    ]
    assert bare == []
    assert RungError("No.").code == "error"
