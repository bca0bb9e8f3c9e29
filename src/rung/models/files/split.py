"""GGUF models in several files, as ``llama-gguf-split`` writes them: ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from pathlib import Path

from rung.core.errors import BadFile, ModelNotFound
from rung.core.text import count as counted
from rung.models.files.gguf import Header, read_header

_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<all>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_MOST_PARTS = 1024


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts of the model that a file of this name is a part of; the name alone for a whole model."""
    found = _NAME.fullmatch(name)
    if not found or not 1 <= int(found["all"]) <= _MOST_PARTS:
        return (name,)
    parts = range(1, int(found["all"]) + 1)
    return tuple(f"{found['stem']}-{part:05d}-of-{found['all']}{found['suffix']}" for part in parts)


def read_parts(path: Path) -> tuple[Header, ...]:
    """The headers of all parts of a GGUF model, the first with its metadata first; any part may be given.

    Raises ``ModelNotFound`` that names the missing parts, ``BadFile`` when the parts do not belong together.
    """
    names = part_names(path.name)
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise ModelNotFound(
            f"{path.name} is one of {counted(len(names), 'part')}, and {counted(len(missing), 'part')} cannot be found",
            [f"missing in {path.parent}: {name}" for name in missing[:20]],
            [f"hf download ORG/REPO {missing[0]}"],
            code="model-incomplete",
        )
    headers = tuple(read_header(path.parent / name) for name in names)
    _check(headers)
    return headers


def _check(headers: tuple[Header, ...]) -> None:
    for number, header in enumerate(headers):
        count, own = header.metadata.get("split.count", 1), header.metadata.get("split.no", 0)
        if count not in (len(headers), 0) or (len(headers) > 1 and own != number):
            raise BadFile(
                f"{header.path.name} says that it is part {own} of {count} (counted from 0), its name says otherwise",
                ["the parts of a model must keep the names NAME-00001-of-0000N.gguf"],
            )
    names = [tensor.name for header in headers for tensor in header.tensors]
    if len(set(names)) != len(names):
        known: set[str] = set()
        twice = next(name for name in names if name in known or known.add(name))  # type: ignore[func-returns-value]
        raise BadFile(f"The tensor {twice} is in two parts of {headers[0].path.name}")
    total = headers[0].metadata.get("split.tensors.count", len(names))
    if len(headers) > 1 and total != len(names):
        raise BadFile(f"The parts of {headers[0].path.name} hold {len(names)} tensors, and should hold {total}")
