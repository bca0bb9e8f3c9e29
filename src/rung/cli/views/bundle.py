"""Define what ``rung bundle`` prints."""

from __future__ import annotations

from typing import Any

from rung.bundle.write import Written
from rung.core.text import quoted, size


def words(written: Written) -> str:
    """Return two lines: the bundle and its size, and how it is started."""
    own = size(written.bytes - written.model_bytes)
    path = str(written.path)
    command_path = path if "/" in path else f"./{path}"
    command = quoted(command_path) if written.with_python else f"python {quoted(path)}"
    return f"{path}: {size(written.bytes)}, {own} of them the program\n{command}"


def as_json(written: Written) -> dict[str, Any]:
    """Return the document of ``--json``."""
    return {
        "path": str(written.path),
        "bytes": written.bytes,
        "model_bytes": written.model_bytes,
        "unpacked_bytes": written.unpacked_bytes,
    }
