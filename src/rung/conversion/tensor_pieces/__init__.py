"""Pieces of tensors that are encoded apart and give the bytes of the whole together: rows depend on no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rung import formats
from rung.conversion.job import Job, Step
from rung.conversion.measure import Cost, cost
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.cpu.encode import encoding

#: Bytes of a piece as it is stored before, at most where a tensor can be divided.
PIECE = 1 << 19


@dataclass(frozen=True)
class Piece:
    """Rows of tensor ``number`` from ``first`` on, and how they are to be stored. ``importance`` float32 [columns] says
    what columns count. ``is_last``: no other piece of the tensor follows."""

    number: int
    first: int
    before: Encoded
    format: Format
    name: str
    importance: Floats | None
    is_last: bool


@dataclass(frozen=True)
class Done:
    """A piece in its format, and what that lost; None where nothing was lost."""

    after: Encoded
    lost: Cost | None


#: Encodes pieces somewhere, and yields them in any order.
Elsewhere = Callable[[Iterator[Piece]], Iterator[tuple[Piece, Done]]]


def divide(job: Job, number: int, step: Step, before: Encoded) -> Iterator[Piece]:
    """Yield the pieces of a tensor; one where its format stores what is of several rows."""
    rows = before.shape[0]
    divides = before.format.layout == step.format.layout == "rows"
    height = max(1, PIECE * rows // max(before.nbytes, 1)) if divides else rows
    importance = job.importance.get(step.tensor.role)
    for first in range(0, rows, height):
        part = before
        if height < rows:
            data = before.parts["data"][first : first + height]
            part = Encoded(before.format, (len(data), before.shape[1]), {"data": data})
        is_last = first + height >= rows
        yield Piece(number, first, part, step.format, step.tensor.name, importance, is_last)


def encode(piece: Piece, compiled: frozenset[Format], threads: int) -> Done:
    """Return a piece in its format. Raises ``CannotEncode``."""
    convert = encoding.convert if piece.format in compiled else formats.convert
    after = convert(piece.before, piece.format, piece.name, threads, piece.importance)
    if piece.format.name in ("f32", piece.before.format.name):
        return Done(after, None)
    lost = cost(piece.before, after, threads, piece.format in compiled)
    return Done(after, lost if lost.noise else None)


class Assembly:
    """The pieces that came, of tensors that are not whole yet."""

    def __init__(self) -> None:
        self._pieces: dict[int, dict[int, tuple[Piece, Done]]] = {}

    def add(self, piece: Piece, done: Done) -> tuple[Encoded, dict[str, Any]] | None:
        """Note a piece; return the tensor and its record where it is whole with it."""
        parts = self._pieces.setdefault(piece.number, {})
        parts[piece.first] = piece, done
        listed = [parts[first] for first in sorted(parts)]
        rows = 0
        for each, _ in listed:
            if each.first != rows:
                return None
            rows += each.before.shape[0]
        if not listed[-1][0].is_last:
            return None
        del self._pieces[piece.number]
        return _whole([done.after for _, done in listed]), _record(listed)


def _whole(parts: Sequence[Encoded]) -> Encoded:
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.shape[0] for part in parts)
    data = np.concatenate([part.parts["data"] for part in parts])
    return Encoded(parts[0].format, (rows, parts[0].shape[1]), {"data": data})


def _record(listed: Iterable[tuple[Piece, Done]]) -> dict[str, Any]:
    """Return the record of a tensor: what its pieces lost together."""
    lost = [(piece.first, done.lost) for piece, done in listed if done.lost is not None]
    if not lost:
        return {}
    signal, noise = (math.fsum(getattr(each, name) for _, each in lost) for name in ("signal", "noise"))
    first, worst = min(lost, key=lambda each: each[1].worst_db)
    return {"cost": Cost(signal, noise, worst.worst_db, first + worst.worst_row).to_json()}
