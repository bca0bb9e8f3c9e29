"""GPTQ (arXiv:2210.17323) as AutoGPTQ, GPTQModel and optimum store it.

``qweight`` int32 [in bits / 32, out] holds the codes of a column of the file, which is a row of the weight, as one
stream of bits; ``qzeros`` int32 [groups, out bits / 32] zero points, one less than they are in the first version of
the layout (``checkpoint_format: gptq``) and as they are in the second (``gptq_v2``); ``scales`` f16 [groups, out];
``g_idx`` int32 [in] the group of each column. weight = (code - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.core.errors import BadFile
from rung.core.value import FrozenDict
from rung.models.checkpoints.values import (
    FLOATS,
    INDICES,
    Header,
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
    words_for,
)

if TYPE_CHECKING:
    from rung.formats import Encoded

SUFFIXES = {".qweight": "qweight", ".qzeros": "qzeros", ".scales": "scales", ".g_idx": "g_idx"}
KEY = "qweight"
_BITS = (2, 3, 4, 8)
_VERSIONS = {"gptq": 1, "gptq_v2": 0}


def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight:
    """See ``values.Method``."""
    need(name, parts, "qweight", "qzeros", "scales")
    bits = whole(config, "bits", _BITS)
    version = config.get("checkpoint_format", "gptq")
    if not isinstance(version, str) or version not in _VERSIONS:
        raise unread(f"checkpoint_format is {str(version)[:40]!r}, and rung reads gptq, gptq_v2")
    rows, columns = _shape(name, parts, bits)
    group = group_size(config, columns)
    groups = -(-columns // group)
    if columns % group:
        raise contradiction(name, f"groups of {group} do not divide rows of {columns}")
    shaped(name, parts["scales"], (groups, rows), tuple(FLOATS))
    shaped(name, parts["qzeros"], (groups, words_for(rows, bits)), ("I32",))
    ordered = config.get("desc_act") is True and group < columns
    if ordered and "g_idx" not in parts:
        raise BadFile(
            f"{name} has no g_idx, and desc_act is true: nothing says which columns share a scale",
            (),
            ["take another copy of the model, or one quantized with desc_act=False"],
        )
    scale, symmetric = FLOATS[parts["scales"].dtype], config.get("sym", True) is True
    fmt = format_of(bits, group, scale, symmetric, ordered, columns)
    settings = {"bits": bits, "group": group, "add": _VERSIONS[version], "ordered": ordered}
    return StoredWeight((rows, columns), fmt, FrozenDict(settings))


def _shape(name: str, parts: Headers, bits: int) -> tuple[int, int]:
    words: Header = parts["qweight"]
    if len(words.shape) != 2 or words.dtype != "I32" or words.shape[0] * 32 % bits:
        raise contradiction(name, f"{words.name} is {list(words.shape)} of {words.dtype}")
    columns, rows = words.shape[0] * 32 // bits, words.shape[1]
    if "g_idx" in parts and parts["g_idx"].shape != (columns,):
        shape = parts["g_idx"].shape
        raise contradiction(name, f"bits is {bits}: {words.name} holds {columns} columns, g_idx {list(shape)}")
    if "g_idx" in parts:
        shaped(name, parts["g_idx"], (columns,), INDICES)
    return rows, columns


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``."""
    import numpy as np

    from rung.models.checkpoints.packed import by_group, unpack, weight

    rows, columns = stored.shape
    bits, group = stored.settings["bits"], stored.settings["group"]
    groups = parts["g_idx"].values if "g_idx" in parts else np.arange(columns) // group
    order = by_group(groups, group, name)
    trivial = np.array_equal(order, np.arange(columns))
    if not (trivial or stored.settings["ordered"]):
        raise contradiction(name, "desc_act is false, and g_idx does not count the groups up")
    zero = unpack(parts["qzeros"].values, bits, rows).T.astype(np.int32)
    zero = (zero + stored.settings["add"]) & (2**bits - 1)
    scale = Raw(parts["scales"].dtype, np.ascontiguousarray(parts["scales"].values.T))
    codes = np.empty((rows, columns), np.uint8)
    for first in range(0, rows, _SLAB):
        slab = unpack(parts["qweight"].values[:, first : first + _SLAB].T, bits, columns)
        codes[first : first + _SLAB] = slab[:, np.argsort(order)] if stored.settings["ordered"] else slab
    return weight(
        stored.format, codes, scale, zero, 2 ** (bits - 1), name, order if stored.settings["ordered"] else None
    )


#: Rows that are unpacked at once.
_SLAB = 512
