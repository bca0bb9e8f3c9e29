"""Read a model's weights a tensor at a time, from memory-mapped files, without a copy; find damaged ones."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from rung import formats
from rung.core.errors import BadFile
from rung.core.pages import release
from rung.formats import Encoded
from rung.models import checkpoints
from rung.models.card import ModelCard, Piece, Tensor
from rung.models.cards.encoder import EncoderCard
from rung.models.checkpoints.values import raw_of
from rung.models.files.tensors import truncated

#: Bytes that are read ahead; the system goes on by itself.
_AHEAD = 64 << 20


class Reader:
    """The stored weights of a card. A context manager; what ``read`` returned must not be used after it closes.

    Pages are read when they are touched, and stay in memory until ``done`` gives them back.
    """

    def __init__(self, card: ModelCard | EncoderCard) -> None:
        self._card = card
        self._maps: dict[int, mmap.mmap] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, tensor: Tensor) -> Encoded:
        """The tensor as it is stored: a read-only view of the file. A tensor of one dimension [n] becomes (1, n).

        One with a ``source`` is made of its parts, in memory of its own unless they are ``mapped``. Raises ``BadFile``
        when the file is gone or has become shorter since the card was made, or the parts contradict each other.
        """
        if tensor.source is not None:
            raws = {piece.part: self._raw(piece) for piece in tensor.source.pieces}
            return checkpoints.read(tensor.source.method, tensor.source.held, raws, tensor.name)
        rows, columns = (1, *tensor.shape)[-2:]
        data = np.frombuffer(self._map(tensor), np.uint8, tensor.bytes, tensor.offset)
        return Encoded(formats.get(tensor.format), (rows, columns), {"data": data.reshape(rows, -1)})

    def _raw(self, piece: Piece) -> checkpoints.Raw:
        data = np.frombuffer(self._map(piece), np.uint8, piece.bytes, piece.offset)
        return raw_of(piece.dtype, piece.shape, data)

    def ahead(self, tensor: Tensor) -> None:
        """Reads the first pages of a tensor, for a thread beside the one that works on another tensor.

        Raises ``BadFile`` as ``read`` does.
        """
        for span in _places(tensor):
            pages = np.frombuffer(self._map(span), np.uint8, min(span.bytes, _AHEAD), span.offset)
            pages[:: mmap.PAGESIZE].max(initial=0)

    def done(self, tensor: Tensor) -> None:
        """Gives the tensor's pages back to the system; they are read again if somebody looks."""
        for span in _places(tensor):
            self._done(span)

    def _done(self, tensor: Tensor | Piece) -> None:
        mapped = self._maps.get(tensor.file)
        if mapped is not None:
            release(mapped, tensor.offset, tensor.offset + tensor.bytes)

    def close(self) -> None:
        """Closes the files. Those that views still look at are closed with the last of their views."""
        for mapped in self._maps.values():
            try:
                mapped.close()
            except BufferError:
                continue  # a view is alive: the mapping goes with it
        self._maps.clear()

    def _map(self, tensor: Tensor | Piece) -> mmap.mmap:
        with self._opening:
            if tensor.file not in self._maps:
                self._maps[tensor.file] = _open(Path(self._card.files[tensor.file]))
        mapped, end = self._maps[tensor.file], tensor.offset + tensor.bytes
        if end > len(mapped):
            name = Path(self._card.files[tensor.file]).name
            kind = "GGUF" if self._card.kind == "gguf" else "safetensors"
            raise truncated(name, kind, f"tensor {tensor.name} ends at byte {end:,}, the file at {len(mapped):,}")
        return mapped


def _places(tensor: Tensor) -> Sequence[Tensor | Piece]:
    return tensor.source.pieces if tensor.source else (tensor,)


def _open(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise BadFile(f"{path} is an empty file", code="input-empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error


BLOCKS_AT_ONCE = 2**18
_INFINITE = 0x7C00  # float16 from here on, sign aside, is infinite or NaN


def check_scales(encoded: Encoded, name: str) -> None:
    """Raises ``BadFile`` where a float16 scale or minimum of a block of tensor ``name`` is NaN or infinite.

    Looks at the scales alone, not at weights that are floats themselves, nor at scales of other types.
    """
    layout = formats.layout(encoded.format)
    fields = [] if layout is None else [field for field in layout.names or () if layout[field] == np.dtype("<f2")]
    if layout is None or not fields:
        return
    blocks = encoded.parts["data"].reshape(-1).view(layout)
    per_row = encoded.shape[1] // encoded.format.block
    for first in range(0, len(blocks), BLOCKS_AT_ONCE):
        piece = blocks[first : first + BLOCKS_AT_ONCE]
        for field in fields:
            bad = (piece[field].view("<u2") & 0x7FFF) >= _INFINITE
            if bad.any():
                row = (first + int(np.argmax(bad))) // per_row
                raise BadFile(
                    f"Tensor {name} is damaged: a scale in row {row:,} is {piece[field][np.argmax(bad)]}",
                    ["the file was written from a broken checkpoint, or changed since"],
                    ["download it again, or take another file of the model"],
                    code="values-not-finite",
                )


def find_damage(card: ModelCard) -> BadFile | None:
    """The first damage in the weights of a card, None where there is none.

    Reads the scales of the whole file (some 0.3 s a GB from the page cache), for when a model computes NaN and the
    question is why.
    """
    with Reader(card) as reader:
        for tensor in card.tensors:
            try:
                check_scales(reader.read(tensor), tensor.name)
            except BadFile as damage:
                return damage
            reader.done(tensor)
    return None
