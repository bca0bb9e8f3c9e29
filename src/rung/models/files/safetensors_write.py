"""Read what stands before the weights in a safetensors file; ``safetensors`` reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence


def head(tensors: Sequence[tuple[str, str, tuple[int, ...], int]]) -> tuple[bytes, list[int]]:
    """The bytes before the weights, and where in the file each tensor (name, dtype, shape, bytes) begins.

    Tensors lie without gaps in the given order; who wants them aligned gives the widest dtypes first.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, at = [], 0
    for name, dtype, shape, length in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        offsets.append(at)
        at += length
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [8 + len(text) + offset for offset in offsets]
