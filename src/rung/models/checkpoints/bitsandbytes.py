"""bitsandbytes in 4 and 8 bits, as transformers saves its layers.

4 bits: ``weight`` uint8 [bytes, 1] (or the same bytes as floats), ``weight.absmax``, ``weight.quant_map``, for nested
scales also ``weight.nested_absmax`` and ``weight.nested_quant_map``, and the state as JSON in the bytes of
``weight.quant_state.bitsandbytes__nf4``. 8 bits: ``weight`` int8 and ``SCB`` f32, the largest magnitude of each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung import formats
from rung.core.errors import BadFile, UnknownFormat
from rung.core.value import FrozenDict
from rung.formats.table import NESTED_BLOCK
from rung.models.checkpoints.values import (
    FLOATS,
    Header,
    Headers,
    Peek,
    Raw,
    StoredWeight,
    contradiction,
    need,
    shaped,
    unread,
)
from rung.models.files.jsonfile import parse_object

if TYPE_CHECKING:
    import numpy as np

    from rung.formats import Encoded

_STATE = ".weight.quant_state.bitsandbytes__"
SUFFIXES = {
    ".weight": "weight",
    ".weight.absmax": "absmax",
    ".weight.quant_map": "quant_map",
    ".weight.nested_absmax": "nested_absmax",
    ".weight.nested_quant_map": "nested_quant_map",
    f"{_STATE}nf4": "state",
    f"{_STATE}fp4": "state",
    ".SCB": "SCB",
    ".weight_format": "layout",
}
KEY = "weight"
#: The outlier threshold of 8 bits where a configuration names none.
OUTLIERS = 6.0


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight | None:
    """See ``values.Method``."""
    codes = parts["weight"]
    if "SCB" in parts:
        shaped(name, parts["SCB"], codes.shape[:1], ("F32",))
        shaped(name, codes, (*codes.shape, 1, 1)[:2], ("I8",))
        if "layout" in parts:
            _by_rows(name, parts["layout"], peek)
        return StoredWeight(codes.shape, "llm_int8", FrozenDict())
    if "state" not in parts:
        if codes.dtype not in FLOATS:
            raise contradiction(name, f"{codes.name} is stored as {codes.dtype}, and nothing beside it says how")
        return None
    need(name, parts, "absmax", "quant_map")
    return _four_bits(name, parts, parse_object(peek("state").values.tobytes(), f"the quantization state of {name}"))


def _by_rows(name: str, layout: Header, peek: Peek) -> None:
    """Raises where int8 codes lie in the tiles of an old card's tensor cores."""
    shaped(name, layout, layout.shape if math.prod(layout.shape) == 1 else (1,), ("U8",))
    number = int(peek("layout").values.reshape(-1)[0])
    if number:
        raise unread(
            f"{name} is stored in tiles for one kind of card (weight_format {number}), and rung reads rows (0)"
        )


def _four_bits(name: str, parts: Headers, state: Mapping[str, Any]) -> StoredWeight:
    shape, kind, block = state.get("shape"), state.get("quant_type"), state.get("blocksize")
    if not isinstance(shape, list) or len(shape) != 2 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise BadFile(f"The quantization state of {name} has the shape {str(shape)[:60]}")
    nested = "nested_absmax" in parts
    try:
        fmt = formats.get(f"{kind}:{block}" + (":nested" if nested else ""))
    except UnknownFormat as error:
        raise BadFile(f"The quantization state of {name} is of no kind that rung reads", [error.cause]) from error
    count = math.prod(shape)
    blocks = -(-count // fmt.block)
    if _bytes(parts["weight"]) != -(-count // 2):
        raise contradiction(name, f"{parts['weight'].name} has {_bytes(parts['weight'])} bytes, its state says {shape}")
    shaped(name, parts["absmax"], (blocks,), ("U8",) if nested else ("F32",))
    if nested:
        need(name, parts, "nested_quant_map")
        if state.get("nested_blocksize") != NESTED_BLOCK or not isinstance(state.get("nested_offset"), int | float):
            raise BadFile(f"{name} has nested scales in another way than blocks of {NESTED_BLOCK} with an offset")
        shaped(name, parts["nested_absmax"], (-(-blocks // NESTED_BLOCK),), ("F32",))
    offset = float(state.get("nested_offset", 0.0)) if nested else 0.0
    return StoredWeight((shape[0], shape[1]), fmt.name, FrozenDict({"offset": offset}))


_BITS = {"F32": 32, "F16": 16, "BF16": 16}


def _bytes(header: Header) -> int:
    return math.prod(header.shape) * _BITS.get(header.dtype, 8) // 8


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``."""
    import numpy as np

    from rung.formats import Encoded
    from rung.formats.families import codebook4

    fmt, shape = formats.get(stored.format), (stored.shape[0], stored.shape[1])
    if fmt.name == "llm_int8":
        return Encoded(fmt, shape, {"data": parts["weight"].values.view(np.int8), "scale": parts["SCB"].values})
    _same(parts["quant_map"], codebook4.CODEBOOKS[fmt.name.split(":")[0]], f"the codebook of {name}")
    absmax = parts["absmax"].values
    result = {"data": parts["weight"].values.reshape(-1).view(np.uint8), "absmax": absmax}
    if fmt.nested:
        _same(parts["nested_quant_map"], codebook4.DYNAMIC, f"the codebook of the nested scales of {name}")
        result["nested_absmax"] = parts["nested_absmax"].values
        result["nested_offset"] = np.array([stored.settings["offset"]], np.float32)
    return Encoded(fmt, shape, result)


def _same(found: Raw, table: np.ndarray[Any, Any], what: str) -> None:
    if found.values.shape != table.shape or abs(found.values - table).max() > 1e-6:
        raise BadFile(f"{what} is not bitsandbytes' own", ["rung computes with those of its formats"])
