"""Formats that other quantizers write and rung reads: codes of 2, 4 or 8 bits, a scale and a zero point for a group.

``u2``, ``u4`` and ``u8`` stand for ``(code - zero) * scale`` (GPTQ, AWQ, compressed-tensors, HQQ), ``e4m3`` for
``code * scale`` with codes that are floats of 1 sign, 4 exponent and 3 mantissa bits, without infinities (OFP8,
arXiv:2209.05433). A block is a group of columns of a row: scale, zero point, codes, the first in the lowest bits.
``ordered`` formats hold the columns of a row by group (GPTQ's ``desc_act``); ``order`` says where each one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rung.core.types import Format
from rung.formats.codec import Array, Codec, Encoded, Floats, Source
from rung.formats.table import GROUPED, grouped

#: Scales and zero points as they lie in a block; numpy has no bfloat16.
SCALES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2")}


def _e4m3() -> Floats:
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    value[[0x7F, 0xFF]] = np.nan
    result: Floats = np.where(byte >> 7, -value, value).astype(np.float32)
    return result


#: The value of each byte.
E4M3: Floats = _e4m3()


@dataclass(frozen=True)
class GroupCodec(Codec):
    """Decodes ``data`` uint8 [rows, bytes of a row], and ``order`` int32 [columns] of ordered formats."""

    format: Format

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return GROUPED[self.format.name.split(":")[0]].bits

    @property
    def dtype(self) -> str:
        """f32, f16 or bf16: what scales and zero points are stored in."""
        return scale_of(self.format)

    @cached_property
    def layout(self) -> np.dtype[Any]:
        """The fields of a block: ``scale``, ``zero`` except of e4m3, ``codes``."""
        kind = SCALES[self.dtype]
        zero = [] if self.format.name.startswith("e4m3") else [("zero", kind)]
        return np.dtype([("scale", kind), *zero, ("codes", "u1", (self.format.block * self.bits // 8,))])

    def encode(self, source: Source) -> dict[str, Array]:
        """Never called: ``Format.encodes`` is False."""
        raise AssertionError(self.format.name)

    def decode(self, encoded: Encoded, first: int, out: Floats) -> None:
        """Writes the weights from ``first`` on of the flattened tensor to ``out`` [n]; whole rows are decoded."""
        columns = encoded.shape[1]
        start, end = first // columns, -(-(first + len(out)) // columns)
        if self.format.layout == "ordered":
            rows = self._blocks(encoded, start * columns, end * columns).reshape(end - start, columns)
            whole = rows[:, encoded.parts["order"]].reshape(-1)
            out[:] = whole[first - start * columns :][: len(out)]
            return
        block = self.format.block
        low = first // block * block
        out[:] = self._blocks(encoded, low, -(-(first + len(out)) // block) * block)[first - low :][: len(out)]

    def _blocks(self, encoded: Encoded, first: int, last: int) -> Floats:
        """The weights [first, last) in stored order; whole blocks."""
        size, block = self.layout.itemsize, self.format.block
        data = encoded.parts["data"].reshape(-1)[first // block * size : last // block * size]
        blocks = data.view(self.layout)
        scale = widen(blocks["scale"], self.dtype)[:, None]
        if "zero" not in (self.layout.names or ()):
            result: Floats = (E4M3[blocks["codes"]] * scale).reshape(-1)
            return result
        codes = unpack(blocks["codes"], self.bits).astype(np.float32)
        codes -= widen(blocks["zero"], self.dtype)[:, None]
        if self.dtype != "f32":  # their packages subtract in this dtype; whole numbers are exact in it
            codes = widen(narrow(codes, self.dtype), self.dtype)
        return (codes * scale).reshape(-1)


def scale_of(format: Format) -> str:
    """f32, f16 or bf16: what scales and zero points are stored in."""
    kind, *options = format.name.split(":")
    return next((option for option in options if option in SCALES), GROUPED[kind].scale)


def unpack(packed: Array, bits: int) -> Array:
    """Bytes [..., n] -> codes uint8 [..., 8 n / bits], the first in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def pack(codes: Array, bits: int) -> Array:
    """Codes uint8 [..., n] -> bytes uint8 [..., n bits / 8], the first in the lowest bits."""
    each = 8 // bits
    apart = codes.reshape(*codes.shape[:-1], -1, each)
    packed = np.zeros(apart.shape[:-1], np.uint8)
    for index in range(each):
        packed |= apart[..., index] << np.uint8(bits * index)
    return packed


def widen(values: Array, dtype: str) -> Floats:
    """Values as ``SCALES`` holds them -> float32."""
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def narrow(values: Floats, dtype: str) -> Array:
    """float32 -> as ``SCALES`` holds them, rounded to nearest even."""
    if dtype != "bf16":
        return values.astype(SCALES[dtype])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def build(format: Format, codes: Array, scale: Array, zero: Array | None, order: Array | None = None) -> Encoded:
    """The weight of codes uint8 [rows, columns] with scales and zero points [rows, groups].

    Scales and zero points are given as ``SCALES`` holds them. ``order`` int [columns]: where each column is in
    ``codes``, for ordered formats.
    """
    rows, columns = codes.shape
    codec = GroupCodec(format)
    blocks = np.empty((rows, columns // format.block), codec.layout)
    blocks["scale"] = scale
    if zero is not None:
        blocks["zero"] = zero
    blocks["codes"] = pack(codes.reshape(rows, -1, format.block), codec.bits)
    parts: dict[str, Array] = {"data": blocks.view(np.uint8).reshape(rows, -1)}
    if order is not None:
        parts["order"] = order.astype(np.int32)
    return Encoded(format, (rows, columns), parts)


def finer(encoded: Encoded, group: int) -> Encoded:
    """The same weight in shorter groups, each with the scale and zero point of the one that it is of.

    ``group`` divides the weight's own, and its codes fill whole bytes.
    """
    fmt = encoded.format
    if group == fmt.block:
        return encoded
    kind, _, *_ = fmt.name.split(":")
    result = grouped(kind, group, scale_of(fmt), fmt.layout == "ordered")
    blocks = encoded.parts["data"].view(GroupCodec(fmt).layout)
    several = fmt.block // group
    apart = np.empty((len(blocks), blocks.shape[1] * several), GroupCodec(result).layout)
    for name in apart.dtype.names or ():
        whole = blocks[name]
        apart[name] = whole.reshape(*apart.shape, -1) if name == "codes" else np.repeat(whole, several, axis=1)
    return Encoded(result, encoded.shape, {**encoded.parts, "data": apart.view(np.uint8).reshape(len(blocks), -1)})


def sample(format: Format, shape: tuple[int, int], generator: np.random.Generator) -> Encoded:
    """Return a weight of random codes, scales around 0.01 and zero points, in a random order if the format has one."""
    codec, dtype, (rows, columns) = GroupCodec(format), scale_of(format), shape
    codes = generator.integers(0, 2**codec.bits, shape, dtype=np.uint8)
    if codec.bits == 8:
        codes[(codes & 0x7F) == 0x7F] = 0  # in e4m3 no number
    grid = (rows, columns // format.block)
    scale = narrow(generator.uniform(0.005, 0.02, grid).astype(np.float32), dtype)
    zero = narrow(generator.integers(0, 2**codec.bits, grid).astype(np.float32), dtype)
    order = generator.permutation(columns) if format.layout == "ordered" else None
    return build(format, codes, scale, zero if "zero" in (codec.layout.names or ()) else None, order)
