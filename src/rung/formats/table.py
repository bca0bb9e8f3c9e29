"""Every format as a value, without numpy: what a plan asks of a format is here, its codec is in the file of its family.

A row names the family, the weights of a block, its bytes, the floor and a title. Floors: SQNR measured on Gaussian
weights, less 0.4 dB, unless the row says otherwise; those without an encoder here as llama.cpp encodes them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rung.core.errors import UnknownFormat
from rung.core.plugins import Plugin, Refused
from rung.core.registry import Registry
from rung.core.text import did_you_mean
from rung.core.types import FLOAT_BYTES, Format


@dataclass(frozen=True)
class AddedFormat:
    """A format of a plug-in; ``codec`` names its ``rung.formats.codec.Codec`` as ``package.module:NAME``."""

    format: Format
    codec: str


#: The plug-in and the codec of formats that plug-ins add, by name.
ADDED: dict[str, tuple[Plugin, str]] = {}


def _added(plugin: Plugin, value: Any) -> Mapping[str, Format]:
    if not (isinstance(value, AddedFormat) and isinstance(value.format, Format)):
        raise Refused(f"it names a {type(value).__name__}, and a format is a rung.formats.table.AddedFormat")
    fmt = value.format
    if not re.fullmatch(r"[a-z][a-z0-9_]*", fmt.name) or fmt.name in GROUPED:
        raise Refused(f"{fmt.name!r} is no free name: it must be a-z, 0-9 and _, and none of rung's own")
    if fmt.family in {own.family for own in FORMATS.own.values() if own.name not in ADDED}:
        raise Refused(f"{fmt.name} says that it is of the family {fmt.family!r}, which is rung's own")
    if fmt.layout != "rows" or fmt.block < 1 or fmt.block_bytes < 1 or fmt.nested:
        raise Refused(f"{fmt.name} has the layout {fmt.layout!r}; formats of plug-ins have blocks in rows")
    if not math.isclose(fmt.bits, 8 * fmt.block_bytes / fmt.block):
        raise Refused(
            f"{fmt.name} says {fmt.bits} bits a weight, and its blocks have {8 * fmt.block_bytes / fmt.block}"
        )
    if not re.fullmatch(r"[\w.]+:\w+", value.codec):
        raise Refused(f"{value.codec!r} does not name a codec, as package.module:NAME does")
    if fmt.name not in FORMATS.own:
        ADDED[fmt.name] = (plugin, value.codec)
    return {fmt.name: fmt}


#: The formats by name. nf4 and fp4 stand here with their default block; ``get`` also knows the other blocks.
FORMATS: Registry[Format] = Registry("format", "rung.formats", _added)
_GGUF: dict[int, Format] = {}

#: Blocks that nf4 and fp4 can have, the default first; nested scales are stored in blocks of ``NESTED_BLOCK``.
BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)
NESTED_BLOCK = 256
#: The group of other quantizers' formats where a name has none.
_GROUP = 128
#: Their floors by block; nested scales cost 0.01 dB.
_FLOORS = {"nf4": (20.3, 20.0, 19.7, 19.4, 19.2, 18.9, 18.7), "fp4": (17.8, 17.4, 17.0, 16.6, 16.2, 15.9, 15.5)}


def _row(
    number: int,
    name: str,
    family: str,
    block: int,
    block_bytes: int,
    floor_db: float,
    title: str,
    encodes: bool = True,
) -> None:
    """A format that GGUF files have, under this number of a tensor type."""
    bits = 8 * block_bytes / block
    row = Format(name, family, bits, block, block_bytes, "rows", floor_db, encodes, title=title)
    _GGUF[number] = FORMATS.register(name, row)


_row(0, "f32", "floats", 1, 4, float("inf"), "32-bit float")
# Holds for weights around 0.001 and above; smaller ones fall between the steps of 2^-24.
_row(1, "f16", "floats", 1, 2, 73.2, "16-bit float")
_row(30, "bf16", "floats", 1, 2, 55.2, "16-bit brain float")
_row(2, "q4_0", "legacy", 32, 18, 20.9, "4-bit, scale")
_row(3, "q4_1", "legacy", 32, 20, 21.7, "4-bit, scale and minimum")
_row(6, "q5_0", "legacy", 32, 22, 27.0, "5-bit, scale")
_row(7, "q5_1", "legacy", 32, 24, 28.0, "5-bit, scale and minimum")
_row(8, "q8_0", "legacy", 32, 34, 45.0, "8-bit, scale")
_row(10, "q2_k", "kquants", 256, 84, 10.1, "2-bit, superblocks of 256", False)
_row(11, "q3_k", "kquants", 256, 110, 16.0, "3-bit, superblocks of 256")
_row(12, "q4_k", "kquants", 256, 144, 22.5, "4-bit, superblocks of 256")
_row(13, "q5_k", "kquants", 256, 176, 28.5, "5-bit, superblocks of 256")
_row(14, "q6_k", "kquants", 256, 210, 35.0, "6-bit, superblocks of 256")
_row(20, "iq4_nl", "iq4", 32, 18, 22.2, "4-bit codebook, scale")
_row(23, "iq4_xs", "iq4", 256, 136, 21.9, "4-bit codebook, superblocks of 256", False)
# With an even importance matrix; IQ3_XXS and IQ3_S without one.
_row(16, "iq2_xxs", "iq", 256, 66, 8.8, "2.1-bit grid of 8 weights", False)
_row(17, "iq2_xs", "iq", 256, 74, 10.0, "2.3-bit grid of 8 weights", False)
_row(18, "iq3_xxs", "iq", 256, 98, 13.0, "3.1-bit grid of 4 weights", False)
_row(19, "iq1_s", "iq", 256, 50, 5.8, "1.6-bit grid of 8 ternary weights", False)
_row(21, "iq3_s", "iq", 256, 110, 15.1, "3.4-bit grid of 4 weights", False)
_row(22, "iq2_s", "iq", 256, 82, 11.6, "2.6-bit grid of 8 weights", False)
_row(29, "iq1_m", "iq", 256, 56, 6.5, "1.8-bit grid of 8 ternary weights", False)
_row(39, "mxfp4", "microscale", 32, 17, 18.5, "4-bit float, a power of two for 32 weights")
_row(40, "nvfp4", "microscale", 64, 36, 19.3, "4-bit float, an e4m3 for 16 weights", False)
# A Gaussian is not what these formats are for: llama.cpp takes the largest of 256 weights as scale, for 1.9 dB.
_row(34, "tq1_0", "ternary", 256, 54, 1.4, "ternary, five in a byte", False)
_row(35, "tq2_0", "ternary", 256, 66, 1.4, "ternary, four in a byte", False)
# The longer a row, the larger its largest weight: 41.2 dB at 4,096 Gaussian weights, 39.4 dB at 262,144.
FORMATS.register(
    "llm_int8", Format("llm_int8", "rowwise", 8.0, 1, 1, "row_scale", 39.0, True, title="8-bit, a largest value a row")
)
FORMATS.register("int8", Format("int8", "rowwise", 8.0, 1, 1, "row_scale", 39.0, True, title="8-bit, a scale a row"))


@functools.cache
def codebook(kind: str, block: int, nested: bool) -> Format:
    """``nf4`` or ``fp4`` with one of ``BLOCKS``."""
    bits = 4 + ((8 + 32 / NESTED_BLOCK) if nested else 32) / block
    name = f"{kind}:{block}" + (":nested" if nested else "")
    title = f"4-bit {'normal ' if kind == 'nf4' else ''}float, a scale for {block} weights"
    floor = _FLOORS[kind][BLOCKS.index(block)]
    return Format(name, "codebook4", bits, block, block // 2, "flat", floor, True, nested, title)


for _kind in _FLOORS:
    for _nested in (False, True):
        _format = codebook(_kind, BLOCKS[0], _nested)
        FORMATS.register(_format.name, _format)


class Grouped(NamedTuple):
    """Codes of ``bits``, a scale for each group, and a zero point or not; see ``rung.formats.families.grouped``.

    ``scale`` is the dtype of scales and zero points that the name does not say.
    """

    bits: int
    scale: str
    zero: bool
    floor_db: float
    title: str


#: What other quantizers write. Floors: groups of 128, scale and zero point from the largest and smallest weight.
GROUPED = {
    "u2": Grouped(2, "f16", True, 4.3, "2-bit, scale and zero point"),
    "u4": Grouped(4, "f16", True, 19.6, "4-bit, scale and zero point"),
    "u8": Grouped(8, "f16", True, 44.2, "8-bit, scale and zero point"),
    "e4m3": Grouped(8, "f32", False, 31.0, "8-bit float, a scale for a group"),
}
_MOST_COLUMNS = 1 << 20


@functools.cache
def grouped(kind: str, block: int, scale: str = "", ordered: bool = False) -> Format:
    """``u4``, ``e4m3`` ... for groups of ``block`` columns; scales in f32, f16 or bf16, by default the kind's own."""
    row = GROUPED[kind]
    scale = scale or row.scale
    size = block * row.bits // 8 + FLOAT_BYTES[scale] * (1 + row.zero)
    options = [str(block), *([scale] if scale != row.scale else []), *(["ordered"] if ordered else [])]
    layout = "ordered" if ordered else "rows"
    name = ":".join([kind, *options])
    return Format(name, "grouped", 8 * size / block, block, size, layout, row.floor_db, False, title=row.title)


for _kind in GROUPED:
    _format = grouped(_kind, _GROUP)
    FORMATS.register(_format.name, _format)


def _grouped(kind: str, options: list[str]) -> Format | None:
    """The format of a name's parts; None where they are none."""
    rest = list(options)
    ordered = rest[-1:] == ["ordered"] and bool(rest.pop())
    scale = rest.pop() if rest[-1:] and rest[-1] in FLOAT_BYTES else ""
    block = rest[0] if len(rest) == 1 else str(_GROUP) if not rest else ""
    if not (block.isascii() and block.isdigit() and 0 < int(block) <= _MOST_COLUMNS):
        return None
    return grouped(kind, int(block), scale, ordered) if int(block) * GROUPED[kind].bits % 8 == 0 else None


def get(name: str) -> Format:
    """The format of that name: ``q4_k``, ``NF4`` (the same as ``nf4:64``), ``fp4:128``, ``nf4:64:nested``.

    Raises ``UnknownFormat``, with the names that look alike.
    """
    if not isinstance(name, str):
        raise UnknownFormat(f"A format is named by a string, 'q4_k' say, and not by {name!r}.", (), ["rung formats"])
    normalized = name.strip().lower()
    kind, *options = normalized.split(":")
    if normalized in FORMATS.own:
        return FORMATS[normalized]
    if kind in GROUPED:
        if (found := _grouped(kind, options)) is None:
            choices = f"{kind}:GROUP, {kind}:GROUP:bf16, and each with :ordered"
            raise UnknownFormat(f"There is no format {name!r}: write {choices}", (), ["rung formats"])
        return found
    if kind not in _FLOORS:
        if normalized in FORMATS:  # a plug-in's
            return FORMATS[normalized]
        known = list(dict.fromkeys(key.split(":")[0] for key in FORMATS))
        raise UnknownFormat(f"There is no format {name!r}.{did_you_mean(kind, known)}", ways_out=["rung formats"])
    nested = "nested" in options
    blocks = [option for option in options if option != "nested"] or [str(BLOCKS[0])]
    if len(blocks) != 1 or len(options) - nested > 1 or blocks[0] not in map(str, BLOCKS):
        choices = ", ".join(map(str, BLOCKS))
        raise UnknownFormat(
            f"There is no format {name!r}: write {kind}, {kind}:BLOCK, {kind}:nested or {kind}:BLOCK:nested",
            [f"BLOCK is one of {choices}"],
            ["rung formats"],
        )
    return codebook(kind, int(blocks[0]), nested)


def short_name(name: str) -> str:
    """A format's name without default parameters, which ``get`` takes for the same; other names as they are.

    >>> short_name("nf4:64:nested"), short_name("u4:128:bf16"), short_name("nf4:128"), short_name("q4_k_m")
    ('nf4:nested', 'u4:bf16', 'nf4:128', 'q4_k_m')
    """
    kind, *options = name.split(":")
    usual = str(_GROUP if kind in GROUPED else BLOCKS[0])
    return ":".join([kind, *(option for option in options if option != usual)])


def gguf_type(number: int) -> Format | None:
    """The format of a GGUF tensor type, or None when rung cannot decode it."""
    return _GGUF.get(number)


def gguf_number(fmt: Format) -> int | None:
    """The number of the GGUF tensor type of that format, or None when GGUF has none (nf4, fp4, int8)."""
    return next((number for number, found in _GGUF.items() if found == fmt), None)


def parts(fmt: Format, shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype (uint8, int8, int32, float32) of each part of an encoded weight [rows, columns]."""
    rows, columns = shape
    if fmt.layout in ("rows", "ordered"):
        data = ((rows, columns // fmt.block * fmt.block_bytes), "uint8")
        return {"data": data} if fmt.layout == "rows" else {"data": data, "order": ((columns,), "int32")}
    if fmt.layout == "row_scale":
        return {"data": (shape, "int8"), "scale": ((rows,), "float32")}
    blocks = -(-rows * columns // fmt.block)
    result: dict[str, tuple[tuple[int, ...], str]] = {
        "data": ((-(-rows * columns // 2),), "uint8"),
        "absmax": ((blocks,), "uint8" if fmt.nested else "float32"),
    }
    if fmt.nested:
        result["nested_absmax"] = ((-(-blocks // NESTED_BLOCK),), "float32")
        result["nested_offset"] = ((1,), "float32")
    return result


def part_name(fmt: Format, part: str) -> str:
    """The name of a part in a checkpoint of rung: the codes are named after the format, so that no other one fits."""
    return fmt.name.replace(":", "_") if part == "data" else part


def next_better(fmt: Format, columns: int) -> Format:
    """``fmt`` if rung writes it and it divides such rows, else the smallest GGUF format that does and is no worse.

    No worse is a ``floor_db`` at least as high, among the formats with an encoder; bf16 and f16 divide every row.
    """
    if fmt.encodes and fmt.divides(columns):
        return fmt
    better = [f for f in _GGUF.values() if f.encodes and f.divides(columns) and f.floor_db >= fmt.floor_db]
    return min(better, key=lambda f: (f.bits, -f.floor_db))


#: The least SQNR in dB of a grade.
_GRADES = ((34.5, "hard to tell"), (25.0, "slight"), (18.0, "noticeable"), (13.5, "clear loss"))


def grade(error_db: float) -> str:
    """Return the quality of weights with that SQNR against the stored ones.

    >>> grade(math.inf), grade(45.0), grade(28.5), grade(22.5), grade(16.8), grade(10.1)
    ('as stored', 'hard to tell', 'slight', 'noticeable', 'clear loss', 'poor')
    """
    if math.isinf(error_db):
        return "as stored"
    return next((words for least, words in _GRADES if error_db >= least), "poor")
