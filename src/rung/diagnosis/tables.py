"""The rows of signatures, causes and fixes. People edit the TOML files, programs read ``tables.json``, made from them.

Reading TOML and taking patterns apart costs 0.2 s, the JSON a hundredth of it. ``pages.py`` writes it with the pages; a
test holds that it is current.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

_HERE = resources.files("rung.diagnosis")


@functools.cache
def tables() -> dict[str, list[dict[str, Any]]]:
    """The rows: ``signature`` (with ``anchors``), ``cause``, ``fix`` and ``tell``, in the order of their files."""
    found: dict[str, list[dict[str, Any]]] = json.loads((_HERE / "tables.json").read_text(encoding="utf-8"))
    return found


def compile_tables() -> str:
    """Return the text of ``tables.json``."""
    import tomllib

    from rung.diagnosis.anchors import anchors

    rows = [row | {"anchors": sorted(anchors(row["pattern"]))} for row in _read("signatures", "signature")]
    found = {"signature": rows, "fix": _read("fixes", "fix")}
    for key, file in (("cause", "causes.toml"), ("tell", "tells.toml")):
        found[key] = tomllib.loads((_HERE / file).read_text(encoding="utf-8"))[key]
    return json.dumps(found, ensure_ascii=False, indent=0) + "\n"


def _read(folder: str, key: str) -> list[dict[str, Any]]:
    """The rows of all files of a folder, in the order of their names."""
    import tomllib

    files = sorted((_HERE / folder).iterdir(), key=lambda file: file.name)
    return [
        row
        for file in files
        if file.name.endswith(".toml")
        for row in tomllib.loads(file.read_text(encoding="utf-8"))[key]
    ]
