"""The tree of errors is drawn in its module's docstring, and the drawing is true."""

import re
from pathlib import Path

from rung.core import errors

SOURCE = Path(errors.__file__).parents[1]
#: A command of rung in an f-string, up to its end, and what stands in it for a file.
COMMAND = re.compile(r'\brung (?:run|check|quantize|convert|merge|tune|splat|inspect) ([^"]*)"')
FILE = re.compile(r"\{((?:\w+\.)*(?:path|folder|file|place|out|source|target|whole|base|adapters\[0\]|models\[0\]))\}")


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
