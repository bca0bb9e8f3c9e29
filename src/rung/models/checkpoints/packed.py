"""Codes that are packed into words of 32 bits, and weights made of codes, scales and zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.errors import BadFile
from rung.formats import Encoded
from rung.formats.codec import Array
from rung.formats.families import grouped
from rung.formats.families.legacy import Q4_0_LAYOUT, Q8_0_LAYOUT
from rung.models.checkpoints.values import FLOATS, Raw

Codes = npt.NDArray[np.uint8]


def unpack(words: Array, bits: int, count: int) -> Codes:
    """Little-endian streams of codes int32 [n, words] -> the first ``count`` codes of each, uint8 [n, count]."""
    rows = np.ascontiguousarray(words).view(np.uint8)
    if bits == 3:  # codes cross the ends of words
        single = np.unpackbits(rows, axis=1, bitorder="little")[:, : 3 * count].reshape(len(rows), count, 3)
        result: Codes = single[..., 0] | (single[..., 1] << np.uint8(1)) | (single[..., 2] << np.uint8(2))
        return result
    return grouped.unpack(rows, bits)[:, :count]


def weight(
    format_name: str, codes: Codes, scale: Raw, zero: npt.NDArray[Any], middle: int, name: str, order: Any = None
) -> Encoded:
    """The weight of codes [rows, columns], scales [rows, groups] and zero points [rows, groups] (whole numbers).

    ``middle`` is the zero point of symmetric codes, which q4_0 and q8_0 have; raises ``BadFile`` for another there.
    """
    fmt = formats.get(format_name)
    if fmt.family == "grouped":
        stored = scale.values.view(grouped.SCALES[FLOATS[scale.dtype]])
        zeros = grouped.narrow(zero.astype(np.float32), FLOATS[scale.dtype])
        blocks = codes.shape[1] // fmt.block // stored.shape[1]  # several for the scale of a whole row
        return grouped.build(fmt, codes, np.repeat(stored, blocks, 1), np.repeat(zeros, blocks, 1), order)
    if not (zero == middle).all():
        raise BadFile(
            f"{name} contradicts the quantization config of its model",
            [f"sym is true, and zero points differ from {middle}: the first is {int(zero[zero != middle][0])}"],
        )
    rows, columns = codes.shape
    blocks = np.empty((rows, columns // 32), Q4_0_LAYOUT if format_name == "q4_0" else Q8_0_LAYOUT)
    blocks["d"] = np.repeat(scale.values.view(np.float16), columns // scale.values.shape[1] // 32, axis=1)
    apart = codes.reshape(rows, -1, 32)
    if format_name == "q4_0":
        blocks["qs"] = apart[..., :16] | (apart[..., 16:] << np.uint8(4))
    else:
        blocks["qs"] = (apart ^ np.uint8(128)).view(np.int8)
    return Encoded(fmt, (rows, columns), {"data": blocks.view(np.uint8).reshape(rows, -1)})


def by_group(groups: Array, group: int, name: str) -> Array:
    """Where each column lies once columns are sorted by their group: int32 [columns]. ``groups`` int [columns].

    Raises ``BadFile`` where a group has more or fewer columns than the config says.
    """
    columns = len(groups)
    inside = columns and groups.min() >= 0 and groups.max() < columns  # else counting would take what a file says
    counts = np.bincount(groups, minlength=1) if inside else np.zeros(1, np.int64)
    if len(counts) != -(-columns // group) or not (counts == group).all():
        raise BadFile(
            f"{name} contradicts the quantization config of its model",
            [f"g_idx has groups of {sorted(set(counts.tolist()))[:4]} columns, group_size is {group}"],
        )
    order = np.empty(columns, np.int32)
    order[np.argsort(groups, kind="stable")] = np.arange(columns, dtype=np.int32)
    return order
