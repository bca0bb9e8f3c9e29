"""Define what both kinds of weight files have in common: stored tensors, and the checks of where they lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from rung.core.errors import BadFile


@dataclass(frozen=True)
class FileTensor:
    """One tensor of a file: its shape row major (last dimension fastest), format name, first byte and bytes.

    ``format`` is the printed name of a format of ``rung.formats``, or, where rung has none for it, the file's own name
    of the type in capitals; ``known`` tells them apart.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    known: bool
    offset: int
    bytes: int

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.offset + self.bytes


def check_places(tensors: Iterable[FileTensor], file: str, kind: str, length: int) -> None:
    """Raises ``BadFile`` for a tensor that ends past the file's ``length``, or two that overlap."""
    placed = sorted((tensor for tensor in tensors if tensor.bytes), key=lambda tensor: tensor.offset)
    if not placed:
        return
    last = max(placed, key=lambda tensor: tensor.end)
    if last.end > length:
        raise truncated(file, kind, f"tensor {last.name} ends at byte {last.end:,}, the file at {length:,}")
    for before, after in itertools.pairwise(placed):
        if after.offset < before.end:
            raise unsound(
                file,
                kind,
                f"tensors {before.name} and {after.name} overlap",
                [f"{before.name} ends at byte {before.end:,}, {after.name} begins at {after.offset:,}"],
            )


def truncated(file: str, kind: str, cause: str) -> BadFile:
    """The error for a file that ends too early."""
    return BadFile(
        f"{file} is not a whole {kind} file: {cause}.",
        ["The download probably stopped."],
        [_fetch_again(file)],
        code="file-truncated",
    )


def unsound(file: str, kind: str, cause: str, facts: Iterable[str] = ()) -> BadFile:
    """The error for a file that contradicts itself, or claims what no file can hold."""
    ways = [_fetch_again(file), "take another copy or another quantization of the model:  rung run ORG/REPO"]
    return BadFile(f"{file} is not a sound {kind} file: {cause}", facts, ways)


def _fetch_again(file: str) -> str:
    return f"fetch it again:  hf download ORG/REPO {file}"
