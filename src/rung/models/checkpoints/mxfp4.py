"""MXFP4 as gpt-oss stores its experts, https://huggingface.co/docs/transformers/quantization/mxfp4.

``gate_up_proj_blocks`` uint8 [experts, out, in / 32, 16]: the columns 2 i and 2 i + 1 of a block in the low and the
high nibble of byte i; ``gate_up_proj_scales`` uint8 [experts, out, in / 32]: exponents. rung's layout is ggml's, with
the columns i and i + 16 in a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.core.value import FrozenDict
from rung.models.checkpoints.values import Headers, Peek, Raw, StoredWeight, contradiction, need, shaped

if TYPE_CHECKING:
    from rung.formats import Encoded

SUFFIXES = {"_blocks": "blocks", "_scales": "scales"}
KEY = "blocks"


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight:
    """See ``values.Method``; the shape is [experts, out, in]."""
    need(name, parts, "blocks", "scales")
    blocks = parts["blocks"]
    if len(blocks.shape) != 4 or blocks.shape[-1] != 16 or blocks.dtype != "U8":
        raise contradiction(name, f"{blocks.name} is {list(blocks.shape)} of {blocks.dtype}")
    shaped(name, parts["scales"], blocks.shape[:-1], ("U8", "F8_E8M0"))
    experts, rows, groups, _ = blocks.shape
    return StoredWeight((experts, rows, 32 * groups), "mxfp4", FrozenDict())


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``; the experts' rows follow each other."""
    import numpy as np

    from rung import formats
    from rung.formats import Encoded
    from rung.formats.families.microscale import MXFP4_LAYOUT

    experts, rows, columns = stored.shape
    blocks = np.empty((experts * rows, columns // 32), MXFP4_LAYOUT)
    blocks["e"] = parts["scales"].values.reshape(blocks.shape)
    pairs = parts["blocks"].values.reshape(*blocks.shape, 16)
    first, second = pairs[..., :8], pairs[..., 8:]
    low, high = np.uint8(15), np.uint8(4)
    blocks["qs"][..., 0::2] = (first & low) | (second << high)
    blocks["qs"][..., 1::2] = (first >> high) | (second & ~low)
    return Encoded(
        formats.get("mxfp4"), (experts * rows, columns), {"data": blocks.view(np.uint8).reshape(len(blocks), -1)}
    )
