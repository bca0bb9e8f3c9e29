"""The tree of errors is drawn in its module's docstring, and the drawing is true."""

import re

from rung.core import errors


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
