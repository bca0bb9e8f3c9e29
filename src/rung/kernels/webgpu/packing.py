"""Weights as GPUs hold them: from the layouts of the CPU's kernels ("r16") to sections of words, and the way back.

What a CPU packs is 16 rows of a unit after each other; what a GPU reads is a row after the other. Nothing is rounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.formats.families.codebook4 import CODEBOOKS as LEVELS
from rung.kernels.cpu.pack import layouts as cpu
from rung.kernels.cpu.pack.codebooks import CODEBOOKS
from rung.kernels.cpu.pack.packing import Packed
from rung.kernels.webgpu.layouts import FIVE_BITS, FLOATS, ROWS, UNIT, GpuLayout

Words = npt.NDArray[np.uint32]
#: The low bits of four codes of a word.
_NIBBLES, _ONES = np.uint32(0x0F0F0F0F), np.uint32(0x01010101)
Bytes = npt.NDArray[np.uint8]


def pack(encoded: Encoded, signed: bool) -> tuple[GpuLayout, list[Words]]:
    """Return how a weight lies and its sections, each filled up to 4 words; ``signed`` is what a CPU's packed bytes
    are."""
    if encoded.format.name in FLOATS:
        rows, _ = encoded.shape
        data = encoded.parts["data"].reshape(rows, -1)
        padded = np.zeros((-(-rows // ROWS) * ROWS, data.shape[1]), np.uint8)
        padded[:rows] = data
        return GpuLayout(encoded.format.name), [_words(padded), *_nothing(3)]
    from rung.kernels.cpu.pack import packing

    layout, sections = _of_packed(packing.pack(encoded), signed)
    if encoded.format.name in FIVE_BITS:
        return _five_bits(layout, sections)
    return (layout, sections) if encoded.format.name != "q3_k" else _three_bits(encoded, layout, sections)


def _five_bits(layout: GpuLayout, sections: list[Words]) -> tuple[GpuLayout, list[Words]]:
    """Return a weight whose codes are bytes in five bits: signed ones, -16 to 15, are 16 more there."""
    offset = 0 if layout.codes == "unsigned" else 16
    words = (sections[0].view(np.uint8) + np.uint8(offset)).view(np.uint32).reshape(-1, 8)
    lows = (words[:, :4] & _NIBBLES) | ((words[:, 4:] & _NIBBLES) << np.uint32(4))
    highs = np.zeros(len(words), np.uint32)
    for number in range(8):
        highs |= ((words[:, number] >> np.uint32(4)) & _ONES) << np.uint32(number)
    return replace(layout, codes="five", offset=offset), [_words(lows), _words(highs), *sections[2:]]


def _three_bits(encoded: Encoded, layout: GpuLayout, sections: list[Words]) -> tuple[GpuLayout, list[Words]]:
    """Return a weight in q3_k in three bits, with the scales that it is stored with: integers, times a float16 of 256
    columns."""
    rows, columns = encoded.shape
    padded = -(-rows // ROWS) * ROWS
    nibbles = sections[0].view(np.uint8)[: padded * columns // 2].reshape(padded, -1, 1, 4, 4)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)  # [rows, units, halves, j, k]
    steps = np.arange(4, dtype=np.uint8)[:, None]
    lows = np.bitwise_or.reduce((codes & 3) << (2 * steps), axis=3)
    highs = np.bitwise_or.reduce((codes >> 2) << (steps + 4 * np.arange(2, dtype=np.uint8)[:, None, None]), axis=(2, 3))
    d = np.zeros((padded, columns // 256, 1), np.float16)
    d[:rows] = encoded.parts["data"].reshape(rows, -1, 110)[..., 108:].copy().view(np.float16)
    scales = sections[2].view(np.float32 if layout.scale == "float" else np.float16)[: padded * columns // 16]
    apart, whole = scales.astype(np.float32).reshape(padded, -1, 16), d.astype(np.float32)
    integers = np.rint(np.divide(apart, whole, out=np.zeros_like(apart), where=whole != 0)).astype(np.int8)
    sections = [_words(lows), _words(highs), _words(integers), _words(d)]
    return GpuLayout("three", "i8", 16, 256, 4), sections


def _nothing(count: int) -> list[Words]:
    return [np.zeros(0, np.uint32)] * count


def _words(array: npt.NDArray[np.generic]) -> Words:
    """Return the bytes of an array as words, filled up to 4 words."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if missing := -len(flat) % 16:
        flat = np.concatenate([flat, np.zeros(missing, np.uint8)])
    return flat.view(np.uint32)


def _of_packed(packed: Packed, signed: bool) -> tuple[GpuLayout, list[Words]]:
    own, columns = packed.layout, packed.shape[1]
    blocks, units = columns // own.block, own.block // UNIT
    data = packed.data[: packed.groups * packed.group_bytes].reshape(packed.groups, -1)
    body = data[:, own.row_header :].reshape(packed.groups, blocks, -1)
    inner = body[:, :, own.block_header :].reshape(packed.groups, blocks, units, -1)
    codes = inner[..., own.unit_header :].reshape(packed.groups, blocks, units, -1, ROWS, 4)
    by_row = np.ascontiguousarray(np.moveaxis(codes, 4, 1))  # [groups, 16, blocks, units, words, 4]
    layout = _layout(packed)
    if layout.codes == "unsigned":
        by_row ^= np.uint8(128 if signed and own.bytewide else 0)
    elif layout.codes == "byte":
        by_row ^= np.uint8(0 if signed else 128)
    if layout.codes == "six":
        sections = [_words(by_row[..., :4, :]), _words(by_row[..., 4:, :])]
    else:
        sections = [_words(by_row), *_nothing(1)]
    layout, scales, heads = _scales(layout, own, data, body, inner)
    return layout, [*sections, scales, heads]


def _layout(packed: Packed) -> GpuLayout:
    """Return the layout but for its scales."""
    own, family = packed.layout, packed.format.name.split(":")[0]
    codes, offset = own.codes, own.offset
    if own.codes == "byte":
        codes, offset = ("unsigned", 0) if own.minimum else ("byte", 0)
    table: tuple[float, ...] = ()
    if own.table:
        values, factor = CODEBOOKS[family]
        exact = LEVELS[family] if family in LEVELS else values.astype(np.float32) * np.float32(factor)
        table, offset = tuple(map(float, exact)), 0
    return GpuLayout(codes, "none", own.group, own.block, offset, table)


def _scales(
    layout: GpuLayout, own: cpu.Layout, data: Bytes, body: Bytes, inner: Bytes
) -> tuple[GpuLayout, Words, Words]:
    """Return the layout with its scales, and their sections."""
    header = inner[..., : own.unit_header]
    if own.scale == "none":
        return replace(layout, scale="row"), _words(data[:, :64]), np.zeros(0, np.uint32)
    if own.scale == "f16":
        return replace(layout, scale="half"), _by_row(body[:, :, :32], np.float16, 1), np.zeros(0, np.uint32)
    if own.scale in ("u6", "i8"):
        return _integers(layout, own, body, header)
    if own.group > UNIT:
        scales, minima = _lanes(body[:, :, :64], np.float32, 1), None
    else:
        scales = _lanes(header[..., : 64 * own.parts], np.float32, own.parts)
        minima = _lanes(header[..., 64 * own.parts :], np.float32, own.parts) if own.minimum else None
    return _float_scales(layout, scales, minima)


def _float_scales(layout: GpuLayout, scales: Floats, minima: Floats | None) -> tuple[GpuLayout, Words, Words]:
    """Return scales and minima [..., rows in order] in float16 where these are exact, else in float32."""
    both = scales if minima is None else np.stack([scales, minima], axis=-1)
    with np.errstate(over="ignore"):
        halves = both.astype(np.float16)
    exact = bool((halves.astype(np.float32) == both).all())
    name = ("half" if exact else "float") + ("" if minima is None else "_min")
    return replace(layout, scale=name), _words(halves if exact else both), np.zeros(0, np.uint32)


def _integers(layout: GpuLayout, own: cpu.Layout, body: Bytes, header: Bytes) -> tuple[GpuLayout, Words, Words]:
    """Return scales that are integers, and the float16 that each block has."""
    if own.scale == "i8":
        scales = _lanes(header, np.int8, own.parts)
        return replace(layout, scale="i8"), _words(scales), _by_row(body[:, :, :32], np.float16, 1)
    heads = np.stack([_lanes(body[:, :, at : at + 32], np.float16, 1) for at in (0, 32)], axis=-1)
    half = own.parts * ROWS
    scales, minima = (_lanes(header[..., at : at + half], np.uint8, own.parts) for at in (0, half))
    if own.parts == 2:
        return replace(layout, scale="u4"), _words(scales | (minima << 4)), _words(heads)
    numbers = np.stack([part.reshape(-1, 8) for part in (scales, minima)], axis=1).astype(np.uint32)
    lows = np.bitwise_or.reduce((numbers & 15) << (4 * np.arange(8, dtype=np.uint32)), axis=2)
    pairs = np.bitwise_or.reduce((numbers >> 4) << (2 * np.arange(8, dtype=np.uint32)), axis=2)
    highs = pairs[:, 0] | (pairs[:, 1] << 16)
    return replace(layout, scale="u6"), _words(np.concatenate([lows, highs[:, None]], axis=1)), _words(heads)


def _lanes(part: Bytes, dtype: npt.DTypeLike, parts: int) -> npt.NDArray[Any]:
    """Return numbers of 16 rows, [groups, blocks, (units,) parts x 16], as [groups, 16, blocks, (units,) parts]."""
    numbers = np.ascontiguousarray(part).view(dtype)
    apart = numbers.reshape(*numbers.shape[:-1], parts, ROWS)
    return np.ascontiguousarray(np.moveaxis(apart, -1, 1))


def _by_row(part: Bytes, dtype: npt.DTypeLike, parts: int) -> Words:
    return _words(_lanes(part, dtype, parts))
