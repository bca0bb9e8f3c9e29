"""Weights of 8-bit floats (e4m3): one scale for a tensor, for each row, or for blocks of rows and columns.

https://huggingface.co/docs/transformers/quantization/finegrained_fp8 and the checkpoints of DeepSeek-V3: ``weight``
F8_E4M3 [out, in] with ``weight_scale_inv`` [out / rows, in / columns], which multiplies in spite of its name;
``weight_scale`` is the same to other writers. Scales are floats, or powers of two in a byte (ue8m0). Scales of
activations are not used: rung does not round activations to 8-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.core.errors import BadFile
from rung.core.value import FrozenDict
from rung.formats import table
from rung.models.checkpoints.values import (
    FLOATS,
    WHOLE_ROW,
    Header,
    Headers,
    Peek,
    Raw,
    StoredWeight,
    contradiction,
    need,
)

if TYPE_CHECKING:
    from rung.formats import Encoded

SUFFIXES = {
    ".weight": "weight",
    ".weight_scale_inv": "scale",
    ".weight_scale": "scale",
    ".activation_scale": "activations",
    ".input_scale": "activations",
}
KEY = "weight"
_SCALES = (*FLOATS, "U8", "F8_E8M0")


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight | None:
    """See ``values.Method``."""
    codes = parts["weight"]
    if codes.dtype in FLOATS:
        if "scale" in parts:
            raise contradiction(name, f"it has scales, and is stored as {codes.dtype}")
        return None
    return of_codes(name, parts, config.get("weight_block_size"))


def of_codes(name: str, parts: Headers, block: object) -> StoredWeight:
    """A weight of e4m3 codes; ``block`` is [rows, columns] or None. Raises ``BadFile``."""
    need(name, parts, "scale")
    codes, scale = parts["weight"], parts["scale"]
    if len(codes.shape) != 2 or codes.dtype != "F8_E4M3":
        raise BadFile(f"{name} is {list(codes.shape)} of {codes.dtype}", ["rung reads matrices of F8_E4M3"])
    rows, columns = codes.shape
    tall, wide = _block(name, codes, scale, block)
    group = math.gcd(WHOLE_ROW if wide == columns else wide, columns)
    format_name = table.grouped("e4m3", group, "bf16" if scale.dtype == "BF16" else "f32").name
    return StoredWeight((rows, columns), format_name, FrozenDict({"rows": tall, "columns": wide}))


def _block(name: str, codes: Header, scale: Header, block: object) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = codes.shape
    grid = scale.shape if len(scale.shape) == 2 else (*scale.shape, 1, 1)[:2]
    if len(scale.shape) > 2 or scale.dtype not in _SCALES or 0 in grid:
        raise contradiction(name, f"{scale.name} is {list(scale.shape)} of {scale.dtype}")
    if isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block):
        tall, wide = block
        if grid == (-(-rows // tall), -(-columns // wide)):
            return min(tall, rows), min(wide, columns)
        raise contradiction(
            name, f"{scale.name} is {list(scale.shape)}, blocks are {tall} x {wide} of {rows} x {columns}"
        )
    if rows % grid[0] or columns % grid[1]:
        raise contradiction(name, f"{scale.name} is {list(scale.shape)}, which does not divide {rows} x {columns}")
    return rows // grid[0], columns // grid[1]


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``."""
    import numpy as np

    from rung import formats
    from rung.formats.families import grouped

    rows, columns = stored.shape
    tall, wide = stored.settings["rows"], stored.settings["columns"]
    fmt = formats.get(stored.format)
    raw = parts["scale"]
    grid = (-(-rows // tall), -(-columns // wide))
    scales = raw.values.reshape(grid) if grouped.scale_of(fmt) == "bf16" else raw.floats().reshape(grid)
    of_rows = np.repeat(scales, tall, axis=0)[:rows]
    scale = np.repeat(of_rows, wide // fmt.block, axis=1)[:, : columns // fmt.block]
    return grouped.build(fmt, parts["weight"].values.view(np.uint8), scale, None)
