"""Damage that a header does not show: scales of blocks that are NaN or infinite."""

from __future__ import annotations

import numpy as np

from rung import formats
from rung.core.errors import BadFile
from rung.formats import Encoded
from rung.models.card import ModelCard
from rung.models.reader import Reader

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
