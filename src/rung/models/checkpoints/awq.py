"""AWQ (arXiv:2306.00978) in AutoAWQ's gemm layout.

``qweight`` int32 [in, out / 8] and ``qzeros`` int32 [groups, out / 8]: of a word the nibbles, lowest first, are the
outputs 0, 2, 4, 6, 1, 3, 5, 7; ``scales`` f16 [groups, out]. weight = (code - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.core.value import FrozenDict
from rung.models.checkpoints.values import (
    FLOATS,
    Headers,
    Peek,
    Raw,
    StoredWeight,
    contradiction,
    format_of,
    group_size,
    need,
    shaped,
    unread,
    whole,
)

if TYPE_CHECKING:
    from rung.formats import Encoded
    from rung.formats.codec import Array

SUFFIXES = {".qweight": "qweight", ".qzeros": "qzeros", ".scales": "scales"}
KEY = "qweight"
#: Where the outputs 0 ... 7 are among the nibbles of a word.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_SLAB = 512


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight:
    """See ``values.Method``."""
    need(name, parts, "qweight", "qzeros", "scales")
    bits = whole(config, "bits", (4,), config.get("w_bit"))
    layout = str(config.get("version", "gemm")).lower()
    if layout != "gemm":
        raise unread(f"the AWQ layout is {layout[:40]!r}, and rung reads gemm")
    words = parts["qweight"]
    if len(words.shape) != 2:
        raise contradiction(name, f"{words.name} is {list(words.shape)} of {words.dtype}")
    columns, rows = words.shape[0], words.shape[1] * 8
    group = group_size(config, columns, "group_size" if "group_size" in config else "q_group_size")
    if columns % group:
        raise contradiction(name, f"groups of {group} do not divide rows of {columns}")
    shaped(name, words, (columns, rows // 8), ("I32",))
    shaped(name, parts["qzeros"], (columns // group, rows // 8), ("I32",))
    shaped(name, parts["scales"], (columns // group, rows), tuple(FLOATS))
    fmt = format_of(bits, group, FLOATS[parts["scales"].dtype], False, False, columns)
    return StoredWeight((rows, columns), fmt, FrozenDict())


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``."""
    import numpy as np

    from rung.models.checkpoints.packed import weight

    rows, columns = stored.shape
    zero = _outputs(parts["qzeros"].values)
    scale = Raw(parts["scales"].dtype, np.ascontiguousarray(parts["scales"].values.T))
    codes = np.empty((rows, columns), np.uint8)
    for first in range(0, rows, _SLAB):
        codes[first : first + _SLAB] = _outputs(parts["qweight"].values[:, first // 8 : (first + _SLAB) // 8])
    return weight(stored.format, codes, scale, zero, 8, name)


def _outputs(words: Array) -> Array:
    """int32 [n, outputs / 8] -> codes uint8 [outputs, n]."""
    import numpy as np

    from rung.formats.families import grouped

    nibbles = grouped.unpack(np.ascontiguousarray(words).view(np.uint8), 4)
    return nibbles.reshape(len(words), -1, 8)[:, :, _PLACES].reshape(len(words), -1).T
