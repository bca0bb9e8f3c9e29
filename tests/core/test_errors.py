"""The tree of errors is drawn in its module's docstring, and the drawing is true."""

import ast
import functools
import re
from pathlib import Path

from rung.core import errors

SOURCE = Path(errors.__file__).parents[1]
#: A command of rung in an f-string, up to its end, and what stands in it for a file.
COMMAND = re.compile(r'\brung (?:run|check|quantize|convert|merge|tune|splat|inspect) ([^"]*)"')
FILE = re.compile(r"\{((?:\w+\.)*(?:path|folder|file|place|out|source|target|whole|base|adapters\[0\]|models\[0\]))\}")


@functools.cache
def _classes():
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.RungError)
    }


def test_the_drawing_is_the_tree():
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([\s│├└─]*)([A-Z]\w+)", line)
        if found and found[2] in _classes():
            depth = (len(found[1]) - 4) // 4
            path = [*path[:depth], found[2]]
            drawn[found[2]] = path[-2] if depth else "Exception"
    assert drawn == {name: kind.__mro__[1].__name__ for name, kind in _classes().items()}


def test_a_name_from_a_file_cannot_steer_the_terminal():
    hostile = errors.BadFile("no place for \x1b]0;x\x07\x9b31m\u202eknat", ["tensor \x1b[2J"], ["rung check MODEL"])
    said = str(hostile)
    assert said.splitlines() == [
        r"no place for \x1b]0;x\x07\x9b31m\u202eknat",
        r"  tensor \x1b[2J",
        "What to do",
        "  1  rung check MODEL",
    ]


def test_commands_hold_paths_as_a_shell_takes_them():
    """Every f-string of the package with a command of rung and a path in it."""
    bare = [
        f"{file.relative_to(SOURCE)}: {found[0]}"
        for file in SOURCE.rglob("*.py")
        for found in COMMAND.finditer(file.read_text("utf-8"))
        if FILE.search(found[1])
    ]
    assert not bare


@functools.cache
def _raised():
    """Return parts of the errors of the package: the file and line, the text of the cause as it begins, and the ways
    out; what is put in for ``{...}`` stands as that."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if name in _classes() and node.args:
                ways = [*node.args[2:3], *(word.value for word in node.keywords if word.arg == "ways_out")]
                texts = [text for way in ways for text in map(_text, ast.walk(way)) if text]
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", _text(node.args[0]), texts))
    return found


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_a_cause_begins_with_a_capital_or_with_a_name():
    """``rung exec takes ...`` and ``torch 2.3 needs ...`` are names; ``there is no ...`` ends a sentence."""
    words = re.compile(r"(the|there|an?|nothing|this|another|token|it|id|tensor|row|without|no|neither|what|how) ")
    found = [(where, cause[:60]) for where, cause, _ in _raised() if words.match(cause)]
    assert not found
    assert len(_raised()) > 400


def test_what_a_way_out_tells_to_type_can_be_typed():
    """A command is one, with what it does behind ``#``, where a shell reads no further."""
    commands = [way for _, _, ways in _raised() for way in ways if way.startswith(("rung ", "pip ", "hf "))]
    typed = {way: re.sub(r"'[^']*'|\"[^\"]*\"", "X", way.split("   # ")[0]) for way in commands}
    prose = [way for way, bare in typed.items() if re.search(r": |  |\(|, | and | or ", bare)]
    assert not prose
    assert len(commands) > 60
