"""HQQ (https://github.com/mobiusml/hqq) as its layers write themselves to safetensors.

``W_q`` uint8: groups of ``group_size`` weights of the flattened tensor are the rows (``axis`` 1) or columns (0) of a
matrix of codes, whose first half is in the high nibbles; ``scale`` and ``zero`` floats for each group; the rest are
numbers that describe these. weight = (code - zero) * scale in ``compute_dtype``, each step rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.core.errors import BadFile
from rung.core.value import FrozenDict
from rung.formats import table
from rung.models.checkpoints.values import FLOATS, Headers, Peek, Raw, StoredWeight, contradiction, need, unread

if TYPE_CHECKING:
    from rung.formats import Encoded

_DESCRIBING = (
    *("nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale"),
    *("quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise"),
    *("optimize", "round_zero"),
)
SUFFIXES = {f".{part}": part for part in ("W_q", "scale", "zero", *_DESCRIBING)}
KEY = "W_q"


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight:
    """See ``values.Method``. What no format has (``axis`` 0, groups across rows) is held in the scale's floats."""
    need(name, parts, "W_q", "scale", "zero", "shape", "nbits", "axis")
    bits, axis = (int(peek(part).values.reshape(-1)[0]) for part in ("nbits", "axis"))
    shape = tuple(int(n) for n in peek("shape").values.reshape(-1))
    codes, scale = parts["W_q"], parts["scale"]
    if codes.dtype != "U8" or axis not in (0, 1) or scale.dtype not in FLOATS:
        raise BadFile(f"{name} is HQQ in {codes.dtype} along axis {axis}, with scales in {scale.dtype}")
    if bits not in (4, 8):
        raise unread(f"{name} is HQQ of {bits} bits, and rung reads 4 and 8")
    if len(shape) != 2 or len(codes.shape) != 2 or math.prod(shape) != math.prod(codes.shape) * 8 // bits:
        raise contradiction(name, f"{codes.name} is {list(codes.shape)}, the weight {list(shape)} of {bits} bits")
    groups = math.prod(scale.shape)
    if not groups or math.prod(shape) % groups or parts["zero"].shape != scale.shape:
        raise contradiction(name, f"{scale.name} is {list(scale.shape)}, the weight {list(shape)}")
    group, dtype = math.prod(shape) // groups, FLOATS[scale.dtype]
    plain = axis == 0 or shape[1] % group or parts["zero"].dtype != scale.dtype
    format_name = dtype if plain else table.grouped({4: "u4", 8: "u8"}[bits], group, dtype).name
    return StoredWeight(shape, format_name, FrozenDict({"bits": bits, "axis": axis}))


def read(weight: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``."""
    import numpy as np

    from rung import formats
    from rung.formats import Encoded
    from rung.formats.families import grouped

    packed, scale, zero = parts["W_q"].values, parts["scale"], parts["zero"]
    codes = packed if weight.settings["bits"] == 8 else np.concatenate([packed >> np.uint8(4), packed & np.uint8(15)])
    fmt, dtype = formats.get(weight.format), FLOATS[scale.dtype]
    if fmt.family == "grouped":
        shape = (weight.shape[0], weight.shape[1] // fmt.block)
        stored = [raw.values.view(grouped.SCALES[dtype]).reshape(shape) for raw in (scale, zero)]
        return grouped.build(fmt, codes.reshape(weight.shape), *stored)
    apart = grouped.widen(grouped.narrow(codes.astype(np.float32) - zero.floats(), dtype), dtype)
    values = grouped.narrow((apart * scale.floats()).reshape(weight.shape), dtype)
    return Encoded(
        fmt, (weight.shape[0], weight.shape[1]), {"data": values.view(np.uint8).reshape(weight.shape[0], -1)}
    )
