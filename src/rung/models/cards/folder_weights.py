"""The weights of a folder that a quantiser wrote: several stored tensors make one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.core.errors import BadFile
from rung.models import checkpoints
from rung.models.card import Piece, Source
from rung.models.checkpoints import rung_folder
from rung.models.files.tensors import Stored
from rung.models.roles import Found

if TYPE_CHECKING:
    from rung.models.checkpoints import Raw

#: safetensors' names of the types that are formats of rung.
_NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
#: The largest tensor that is read for its values while a folder is described.
_SMALL = 1 << 16


def joined(
    found: Sequence[Found],
    files: Sequence[Path],
    config: Mapping[str, Any],
    where: str,
    site: Callable[[str], rung_folder.Site | None],
) -> list[Found]:
    """Return what is stored, with the tensors that make quantised weights replaced by these.

    ``site``: see ``rung_folder.gather``; other methods' tensors tell their shapes. Raises ``UnknownArchitecture`` for a
    method that rung does not read, ``BadFile`` for tensors that contradict the config or each other.
    """
    method = checkpoints.method_of(config, where)
    by_name = {item.stored.name: item for item in found}
    headers = [header_of(item.stored) for item in found]

    def peek(name: str) -> Raw:
        return _read(by_name[name], files)

    if method == checkpoints.OWN:
        weights, plain = rung_folder.gather(rung_folder.said(config, where), headers, site)
    else:
        weights, plain = checkpoints.gather(method, config, headers, peek)
    whole = [by_name[header.name] for header in plain]
    if not weights:
        raise BadFile(f"{where} says that the model is quantised with {method}, and no tensor is")
    for weight in weights:
        stored = Stored(weight.name, weight.held.shape, weight.held.format, True, 0, weight.bytes)
        pieces = tuple(piece_of(part, by_name[name]) for part, name in weight.parts)
        whole.append(Found("", stored, pieces[0].file, Source(method, weight.held, pieces)))
    return whole


def header_of(stored: Stored) -> checkpoints.Header:
    """The tensor as safetensors describes it."""
    return checkpoints.Header(stored.name, stored.shape, _NAMES.get(stored.format, stored.format))


def piece_of(part: str, item: Found) -> Piece:
    """The stored tensor as that part of a weight."""
    header, stored = header_of(item.stored), item.stored
    return Piece(part, stored.name, header.dtype, stored.shape, item.file, stored.offset, stored.bytes)


def _read(item: Found, files: Sequence[Path]) -> Raw:
    """The values of a small stored tensor. Raises ``BadFile``."""
    import numpy as np

    from rung.models.checkpoints.values import raw_of

    header, stored = header_of(item.stored), item.stored
    if stored.bytes > _SMALL:
        raise BadFile(f"{stored.name} has {stored.bytes:,} bytes; what describes a weight is smaller")
    with open(files[item.file], "rb") as file:
        file.seek(stored.offset)
        data = file.read(stored.bytes)
    return raw_of(header.dtype, header.shape, np.frombuffer(data, np.uint8))
