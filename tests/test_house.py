"""Sizes at which a function, a file or a folder of the library is asking to be two."""

import ast
from collections import Counter
from pathlib import Path

import rung

ROOT = Path(rung.__file__).parent
TOP = ROOT.parent.parent
FOLDERS = (ROOT, TOP / "tests", TOP / "benchmarks")

#: Kernels are loops that a compiler unrolls and fuses: they are as long as what they compute.
KERNELS = ROOT / "kernels"


def _body_lines(function):
    """Return the lines of a function from the first statement after its docstring to its end."""
    statements = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return function.end_lineno - statements[0].lineno + 1 if statements else 0


def _long_functions(text, most=40):
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name: lines for function in functions if (lines := _body_lines(function)) > most}


def test_bodies_of_functions_stay_within_40_lines():
    paths = (path for path in ROOT.rglob("*.py") if KERNELS not in path.parents)
    found = {str(path): _long_functions(path.read_text(encoding="utf-8")) for path in paths}
    assert len(found) > 300
    assert not {path: long for path, long in found.items() if long}


def test_signatures_and_docstrings_do_not_count():
    signature = "(\n" + "    a,\n" * 50 + "):\n" + '    """Do.\n' + "    more\n" * 50 + '    """\n'
    short = "def short" + signature + "    a = 1\n" * 40
    long = "async def long" + signature + "    a = 1\n" * 41
    assert _long_functions(short + long + 'def empty():\n    """Do nothing."""\n') == {"long": 41}


def test_files_stay_within_600_lines():
    for folder in FOLDERS:
        for path in folder.rglob("*.py"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 600, f"{path} has {lines} lines: it is asking to be two"


def test_folders_of_the_library_stay_within_15_modules():
    modules = Counter(path.parent for path in ROOT.rglob("*.py"))
    assert modules[ROOT] > 1
    assert not {str(folder): count for folder, count in modules.items() if count > 15}
