"""The rows of the catalog. People edit the TOML files; a program reads ``tables.json``, made from them.

Reading TOML takes fifty times as long. ``write`` makes the file anew, and a test holds that it is current:

    python -c "from rung.hardware.catalog import tables; tables.write()"
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_FILES = ("architectures.toml", "software.toml", "releases.toml", "guarded.toml")


def load(name: str) -> dict[str, Any]:
    """Return the contents of the TOML file of that name beside this module."""
    found: dict[str, Any] = _tables()[name]
    return found


@functools.cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_HERE / "tables.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def text(name: str) -> tuple[str, ...]:
    """Return the lines of the file of that name beside this module."""
    return tuple((_HERE / name).read_text(encoding="utf-8").splitlines())


def rows(name: str) -> list[list[str]]:
    """Return the cells of the rows of a ``.table``; comments and empty lines are left out."""
    lines = (line for line in text(name) if line and not line.startswith("#"))
    return [[cell.strip() for cell in line.split(" |")] for line in lines]


def cells(row: list[str], number: int) -> list[str]:
    """Return the row with as many cells as its table has columns: empty ones at the end may be left out."""
    assert len(row) <= number, f"{number} columns: {row}"
    return row + [""] * (number - len(row))


def compile_tables() -> str:
    """Return the text of ``tables.json``."""
    import tomllib

    found = {name: tomllib.loads((_HERE / name).read_text(encoding="utf-8")) for name in _FILES}
    return json.dumps(found, ensure_ascii=False, indent=0) + "\n"


def write() -> None:
    """Writes ``tables.json``."""
    (_HERE / "tables.json").write_text(compile_tables(), encoding="utf-8")
