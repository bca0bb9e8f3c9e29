"""JSON from outside: bounded in size and depth, an object at the top, no key twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile
from rung.core.text import size

#: Parsed JSON takes up to some 25 times its size (empty lists): this keeps the worst below 64 MB.
LIMIT = 2 * 2**20
#: Of files that are small everywhere, and held while others are read.
SMALL = 2**19


def parse_object(data: bytes, what: str, limit: int = LIMIT) -> dict[str, Any]:
    """The object in ``data`` (at most ``limit`` bytes). Raises ``BadFile``, which names it as ``what``."""
    if len(data) > limit:
        raise BadFile(f"{what} is {size(len(data))} of JSON; rung reads up to {size(limit)}", code="json-invalid")
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=lambda pairs: _unique(pairs, what))
    except UnicodeDecodeError as error:
        raise BadFile(f"{what} is not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise BadFile(f"{what} is nested too deeply", code="json-invalid") from error
    except ValueError as error:
        raise BadFile(f"{what} is not valid JSON: {error}", code="json-invalid") from error
    if not isinstance(value, dict):
        raise BadFile(f"{what} holds a {type(value).__name__}, not an object")
    return value


def _unique(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise BadFile(f"{what} has the key {twice[:80]!r} twice")
    return found


def read_object(path: Path, limit: int = LIMIT, ways_out: Sequence[str] = ()) -> dict[str, Any]:
    """The object in a file. Raises ``BadFile`` when it cannot be read, is longer than ``limit`` or no JSON object;
    ``ways_out`` are those of a file that is no model's."""
    try:
        return parse_object(read_bounded(path, limit), "/".join(path.parts[-2:]))
    except BadFile as error:
        if ways_out:
            raise BadFile(f"{path} cannot be read.", [error.cause], ways_out, code="file-unreadable") from error
        raise


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of a small file. Raises ``BadFile`` when it cannot be read or is longer than ``limit``."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error
    if len(data) > limit:
        raise BadFile(f"{path.name} is longer than {size(limit)}: it is not what its name says")
    return data
