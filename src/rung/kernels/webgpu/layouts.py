"""Layouts of weights in buffers of a GPU, and the WGSL that reads 32 columns of a row of it.

Codes, scales and what else a format stores are sections of their own, row after row, so that threads that are neighbors
read 16 bytes each beside each other. A unit is 32 columns of a row. Rows are filled up to a multiple of 16.

The codes of a unit:

- ``nibble``: 4 words; the low nibbles of word j are columns 4 j to 4 j + 3, the high ones those 16 columns on
- ``six``: the same for the low four bits, then a word for each 16 columns: bits 2 j of its byte k are the high two bits
  of column 4 j + k
- ``five``: as ``nibble``, then a word whose byte k has in bit j the fifth bit of column 4 j + k
- ``three``: 2 words: bits 2 j of byte k of the first are the low two bits of column 4 j + k, of the second of those 16
  columns on; then a word whose byte k has in bit j the third bit of column 4 j + k
- ``byte``: 8 words of signed bytes, or of unsigned ones (``unsigned``)
- ``f16``, ``bf16``, ``f32``: the numbers

Every scale is exact: ``scale * code + minimum`` is the decoded weight.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from string import Template

from rung.core.types import Format
from rung.kernels.cpu.pack import layouts as cpu

ROWS = 16
UNIT = 32
FLOATS = ("f32", "f16", "bf16")
#: Formats with scales in float32 on a CPU that are exact in float16.
_HALVES = ("q4_1", "q5_0", "q5_1", "iq4_nl", "tq1_0", "tq2_0")
#: Formats of five bits.
FIVE_BITS = ("q5_0", "q5_1", "q5_k")
#: Words of a unit by kind of codes: in the first section, in the second.
_CODE_WORDS = {
    "nibble": (4, 0),
    "six": (4, 2),
    "five": (4, 1),
    "three": (2, 1),
    "byte": (8, 0),
    "unsigned": (8, 0),
    "f16": (16, 0),
    "bf16": (16, 0),
    "f32": (32, 0),
}


@dataclass(frozen=True)
class Sections:
    """Starts of the parts of a weight, in words: ``codes``, ``highs`` (of three, five and six bits), ``scales`` and
    ``heads`` (what a whole block has); ``words`` in all. Each begins at a multiple of four words."""

    codes: int
    highs: int
    scales: int
    heads: int
    words: int


@dataclass(frozen=True)
class GpuLayout:
    """One way to lay a weight out; see the module.

    ``scale`` says how the scales of ``group`` columns are stored: ``half`` or ``float``, with minima (``half_min``,
    ``float_min``); ``u6`` (6 bits, with minima, times two float16 of a ``block``), ``u4`` (the same of 4 bits), ``i8``
    (times a float16 of a block), ``row`` (a float32 a row) or ``none``. ``offset`` is what codes are above the
    weight's own. ``table`` has the values of 16 codes.
    """

    codes: str
    scale: str = "none"
    group: int = UNIT
    block: int = UNIT
    offset: int = 0
    table: tuple[float, ...] = ()

    @property
    def adds(self) -> bool:
        """Return whether something is added to ``scale * code``."""
        return self.offset != 0 or self.scale in ("half_min", "float_min", "u6", "u4")

    def widths(self, columns: int) -> tuple[int, int, int, int]:
        """Return the bytes of a row in each section; see ``Sections``."""
        units, blocks, groups = columns // UNIT, columns // self.block, columns // self.group
        first, second = _CODE_WORDS[self.codes]
        scales = {
            "half": 2 * groups,
            "half_min": 4 * groups,
            "float": 4 * groups,
            "float_min": 8 * groups,
            "u6": 12 * blocks,
            "u4": 16 * blocks,
            "i8": 16 * blocks,
            "row": 4,
            "none": 0,
        }
        heads = {"u6": 4 * blocks, "u4": 4 * blocks, "i8": 2 * blocks}
        return 4 * units * first, 4 * units * second, scales[self.scale], heads.get(self.scale, 0)

    def sections(self, rows: int, columns: int) -> Sections:
        """Return where the parts of that many rows lie."""
        padded = -(-rows // ROWS) * ROWS
        sizes = [-(-padded * width // 16) * 4 for width in self.widths(columns)]
        first, second, third, words = itertools.accumulate(sizes)
        return Sections(0, first, second, third, words)


def gpu_bytes(format: Format, shape: tuple[int, ...]) -> int:
    """Return the most bytes that a weight [..., columns] takes: of a format whose scales are exact in float16 in some
    weights only, those with scales in float32."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    layout = widest(format)
    return 4 * layout.sections(rows, columns).words if layout is not None else format.bytes(shape)


def widest(format: Format) -> GpuLayout | None:
    """Return the layout of a format with its widest scales, or None where it has no layout."""
    if format.name in FLOATS:
        return GpuLayout(format.name)
    if format.name.split(":")[0] not in cpu.FORMATS:
        return None
    if format.name == "q3_k":
        return GpuLayout("three", "i8", 16, 256, 4)
    own = cpu.layout_of(format)
    codes = own.codes if own.codes != "byte" else "unsigned" if own.minimum else "byte"
    if format.name in FIVE_BITS:
        codes = "five"
    exact = format.name.split(":")[0] in _HALVES
    scale = {"none": "row", "f16": "half", "u6": "u4" if own.parts == 2 else "u6", "i8": "i8"}.get(own.scale, "")
    scale = scale or ("half" if exact else "float") + ("_min" if own.minimum else "")
    return GpuLayout(codes, scale, own.group, own.block)


def reader(name: str, layout: GpuLayout, columns: int) -> str:
    """Return the WGSL function ``name(place, row, unit, w)``: the codes of a unit as 8 vectors of float32 in ``w``, and
    (scale of the first half, of the second, minimum of the first half, of the second).

    ``place`` is where the weight's sections lie (``address``) in ``vectors`` and ``words``, the same buffer as
    vec4<u32> and as u32.
    """
    values = {
        "units": columns // UNIT,
        "blocks": columns // layout.block,
        "groups": columns // layout.group,
        "per_group": max(layout.group // UNIT, 1),
        "offset": -layout.offset,
        "table": f"table_{name}",
    }
    codes = _CODES[layout.codes + ("_table" if layout.table else "")]
    scales = _SCALES[layout.scale + ("_16" if layout.group < UNIT else "")]
    body = Template(f"    let at = row * ${{units}}u + unit;\n{codes}{scales}").substitute(values)
    arguments = "place: vec4<u32>, row: u32, unit: u32, w: ptr<function, array<vec4<f32>, 8>>"
    head = f"fn {name}({arguments}) -> vec4<f32> {{\n"
    if not layout.table:
        return f"{head}{body}}}\n"
    table = ", ".join(f"{value!r}f" for value in layout.table)
    return f"var<private> table_{name}: array<f32, 16> = array<f32, 16>({table});\n{head}{body}}}\n"


def integers(name: str, layout: GpuLayout, columns: int) -> str:
    """Return the WGSL function ``name(place, row, unit)`` of a layout that ``has_integers``: the codes of a unit as
    signed bytes, to which ``integer_offset`` is to be added, and the scales as ``reader`` has them. Of a layout that
    ``looks_up`` they are values, and ``pairs_name`` has to be filled before (``pairs``)."""
    values = {
        "blocks": columns // layout.block,
        "groups": columns // layout.group,
        "per_group": max(layout.group // UNIT, 1),
        "offset": 0,
    }
    scales = _SCALES[layout.scale + ("_16" if layout.group < UNIT else "")]
    scales = Template(scales).substitute(values)
    return f"""fn scales_{name}(place: vec4<u32>, row: u32, unit: u32, at: u32) -> vec4<f32> {{
{scales}}}
fn {name}(place: vec4<u32>, row: u32, unit: u32) -> Codes {{
    let at = row * {columns // UNIT}u + unit;
{_LOOKED_UP.replace("PAIRS", f"pairs_{name}") if looks_up(layout) else _INTEGERS[layout.codes]}
    return Codes(low, high, scales_{name}(place, row, unit, at));
}}
"""


#: Bytes of a workgroup's memory that ``pairs`` takes.
PAIRS_BYTES = 1024


def pairs(name: str, layout: GpuLayout, threads: int) -> str:
    """Return the WGSL of ``pairs_name``, the signed bytes that each byte of two codes stands for, the low one's and, 16
    bits on, the high one's; and of ``fill_name(thread)``, by which all threads of a workgroup fill it."""
    levels = [int(value) & 255 for value in layout.table]
    words = [sum(level << 8 * k for k, level in enumerate(levels[at : at + 4])) for at in range(0, 16, 4)]
    table = ", ".join(f"{word}u" for word in words)
    return f"""var<workgroup> pairs_{name}: array<u32, 256>;
fn fill_{name}(thread: u32) {{
    let table = vec4<u32>({table});
    for (var i = thread; i < 256u; i += {threads}u) {{
        let low = (table[(i >> 2u) & 3u] >> (8u * (i & 3u))) & 255u;
        let high = (table[i >> 6u] >> (8u * ((i >> 4u) & 3u))) & 255u;
        pairs_{name}[i] = low | (high << 16u);
    }}
}}
"""


#: What ``integers`` returns.
CODES = "struct Codes { low: vec4<u32>, high: vec4<u32>, scales: vec4<f32> }"


def has_integers(layout: GpuLayout) -> bool:
    """Return whether codes are signed bytes but for a factor and a number that is added to all of them, or stand for
    signed bytes."""
    return layout.codes in _INTEGERS and (not layout.table or integer_step(layout) != 0)


def looks_up(layout: GpuLayout) -> bool:
    """Return whether codes stand for signed bytes that are not evenly spaced: a table in a workgroup's memory has them.
    The values of nf4 and fp4 are no multiples of a number by signed bytes."""
    whole = all(value.is_integer() and abs(value) < 128 for value in layout.table)
    return bool(layout.table) and layout.codes == "nibble" and whole and _even_step(layout) == 0


def integer_step(layout: GpuLayout) -> int:
    """Return the factor of the signed bytes of ``integers``; 0 where nothing makes them the values."""
    return 1 if not layout.table or looks_up(layout) else _even_step(layout)


def _even_step(layout: GpuLayout) -> int:
    """Return the distance between the values of codes that follow each other; 0 where they are not evenly spaced, or no
    integers."""
    last = max(number for number, value in enumerate(layout.table) if value)  # behind it are codes that nothing has
    values = layout.table[: last + 1]
    steps = {right - left for left, right in itertools.pairwise(values)}
    even = len(steps) == 1 and all(value.is_integer() for value in values)
    return int(steps.pop()) if even else 0


def integer_offset(layout: GpuLayout) -> int:
    """Return the number that turns the signed bytes of ``integers``, times their step, into the weight's integers."""
    if layout.table:
        return 0 if looks_up(layout) else int(layout.table[0])
    return 128 if layout.codes == "unsigned" else -layout.offset


def address(layout: GpuLayout, rows: int, columns: int, base: int, first: int = 0) -> str:
    """Return, as WGSL, where the rows from ``first`` on, a multiple of 16, lie of a weight that begins at a word, a
    multiple of four."""
    lies = layout.sections(rows, columns)
    starts = (lies.codes, lies.highs, lies.scales, lies.heads)
    words = [base + at + first * width // 4 for at, width in zip(starts, layout.widths(columns), strict=True)]
    return f"vec4<u32>({words[0] // 4}u, {words[1]}u, {words[2]}u, {words[3]}u)"


_NIBBLES = """    let codes = vectors[place.x + at];
    for (var j = 0u; j < 4u; j++) {
        (*w)[j] = vec4<f32>(unpack4xU8(codes[j] & 0x0f0f0f0fu));
        (*w)[j + 4u] = vec4<f32>(unpack4xU8((codes[j] >> 4u) & 0x0f0f0f0fu));
    }
"""
_BYTES = """    for (var k = 0u; k < 2u; k++) {
        let codes = vectors[place.x + 2u * at + k];
        for (var j = 0u; j < 4u; j++) { (*w)[4u * k + j] = vec4<f32>(unpack4x$kind(codes[j])); }
    }
"""
_CODES = {
    "nibble": _NIBBLES,
    "nibble_table": """    let codes = vectors[place.x + at];
    for (var j = 0u; j < 4u; j++) {
        let low = unpack4xU8(codes[j] & 0x0f0f0f0fu);
        let high = unpack4xU8((codes[j] >> 4u) & 0x0f0f0f0fu);
        (*w)[j] = vec4<f32>($table[low.x], $table[low.y], $table[low.z], $table[low.w]);
        (*w)[j + 4u] = vec4<f32>($table[high.x], $table[high.y], $table[high.z], $table[high.w]);
    }
""",
    "six": """    let codes = vectors[place.x + at];
    let first = words[place.y + 2u * at];
    let second = words[place.y + 2u * at + 1u];
    for (var j = 0u; j < 4u; j++) {
        (*w)[j] = vec4<f32>(unpack4xU8((codes[j] & 0x0f0f0f0fu) | (((first >> (2u * j)) & 0x03030303u) << 4u)));
        (*w)[j + 4u] = vec4<f32>(
            unpack4xU8(((codes[j] >> 4u) & 0x0f0f0f0fu) | (((second >> (2u * j)) & 0x03030303u) << 4u)));
    }
""",
    "five": """    let codes = vectors[place.x + at];
    let fifth = words[place.y + at];
    for (var j = 0u; j < 4u; j++) {
        (*w)[j] = vec4<f32>(unpack4xU8((codes[j] & 0x0f0f0f0fu) | ((fifth << (4u - j)) & 0x10101010u)));
        (*w)[j + 4u] = vec4<f32>(unpack4xU8(((codes[j] >> 4u) & 0x0f0f0f0fu) | ((fifth >> j) & 0x10101010u)));
    }
""",
    "three": """    let high = words[place.y + at];
    for (var k = 0u; k < 2u; k++) {
        let low = words[4u * place.x + 2u * at + k];
        for (var j = 0u; j < 4u; j++) {
            (*w)[4u * k + j] = vec4<f32>(unpack4xU8(
                ((low >> (2u * j)) & 0x03030303u) | (((high >> (4u * k + j)) & 0x01010101u) << 2u)));
        }
    }
""",
    "byte": _BYTES.replace("$kind", "I8"),
    "unsigned": _BYTES.replace("$kind", "U8"),
    "f16": """    for (var k = 0u; k < 4u; k++) {
        let codes = vectors[place.x + 4u * at + k];
        (*w)[2u * k] = vec4<f32>(unpack2x16float(codes.x), unpack2x16float(codes.y));
        (*w)[2u * k + 1u] = vec4<f32>(unpack2x16float(codes.z), unpack2x16float(codes.w));
    }
""",
    "bf16": """    for (var k = 0u; k < 4u; k++) {
        let codes = vectors[place.x + 4u * at + k];
        let low = bitcast<vec4<f32>>(codes << vec4<u32>(16u));
        let high = bitcast<vec4<f32>>(codes & vec4<u32>(0xffff0000u));
        (*w)[2u * k] = vec4<f32>(low.x, high.x, low.y, high.y);
        (*w)[2u * k + 1u] = vec4<f32>(low.z, high.z, low.w, high.w);
    }
""",
    "f32": """    for (var k = 0u; k < 8u; k++) { (*w)[k] = bitcast<vec4<f32>>(vectors[place.x + 8u * at + k]); }
""",
}
_HALF = "vec4<u32>(0x0f0f0f0fu)"
_INTEGERS = {
    "nibble": f"""    let codes = vectors[place.x + at];
    let low = codes & {_HALF};
    let high = (codes >> vec4<u32>(4u)) & {_HALF};""",
    "six": f"""    let codes = vectors[place.x + at];
    let shifts = vec4<u32>(0u, 2u, 4u, 6u);
    let first = (vec4<u32>(words[place.y + 2u * at]) >> shifts) & vec4<u32>(0x03030303u);
    let second = (vec4<u32>(words[place.y + 2u * at + 1u]) >> shifts) & vec4<u32>(0x03030303u);
    let low = (codes & {_HALF}) | (first << vec4<u32>(4u));
    let high = ((codes >> vec4<u32>(4u)) & {_HALF}) | (second << vec4<u32>(4u));""",
    "five": f"""    let codes = vectors[place.x + at];
    let fifth = vec4<u32>(words[place.y + at]);
    let low = (codes & {_HALF}) | ((fifth << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(0x10101010u));
    let upper = (codes >> vec4<u32>(4u)) & {_HALF};
    let high = upper | ((fifth >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x10101010u));""",
    "three": """    let third = vec4<u32>(words[place.y + at]);
    let first = vec4<u32>(words[4u * place.x + 2u * at]);
    let second = vec4<u32>(words[4u * place.x + 2u * at + 1u]);
    let low = ((first >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u))
        | (((third >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x01010101u)) << vec4<u32>(2u));
    let high = ((second >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u))
        | (((third >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(0x01010101u)) << vec4<u32>(2u));""",
    "byte": """    let low = vectors[place.x + 2u * at];
    let high = vectors[place.x + 2u * at + 1u];""",
    "unsigned": """    let low = vectors[place.x + 2u * at] ^ vec4<u32>(0x80808080u);
    let high = vectors[place.x + 2u * at + 1u] ^ vec4<u32>(0x80808080u);""",
}
_LOOKED_UP = "\n".join(
    [
        "    let codes = vectors[place.x + at];",
        *(
            f"""    let left_{j} = PAIRS[codes.{j} & 255u] | (PAIRS[(codes.{j} >> 8u) & 255u] << 8u);
    let right_{j} = PAIRS[(codes.{j} >> 16u) & 255u] | (PAIRS[codes.{j} >> 24u] << 8u);"""
            for j in "xyzw"
        ),
        "    let left = vec4<u32>(left_x, left_y, left_z, left_w);",
        "    let right = vec4<u32>(right_x, right_y, right_z, right_w);",
        "    let low = (left & vec4<u32>(0xffffu)) | (right << vec4<u32>(16u));",
        "    let high = (left >> vec4<u32>(16u)) | (right & vec4<u32>(0xffff0000u));",
    ]
)
_ONE = "    return vec4<f32>(scale, scale, ${offset}.0 * scale, ${offset}.0 * scale);\n"
_SCALES = {
    "none": "    return vec4<f32>(1.0, 1.0, 0.0, 0.0);\n",
    "row": "    let scale = bitcast<f32>(words[place.z + row]);\n" + _ONE,
    "half": """    let number = row * ${groups}u + unit / ${per_group}u;
    let two = unpack2x16float(words[place.z + number / 2u]);
    let scale = select(two.x, two.y, (number & 1u) == 1u);
"""
    + _ONE,
    "half_16": """    let two = unpack2x16float(words[place.z + at]);
    return vec4<f32>(two, ${offset}.0 * two);
""",
    "half_min": """    let two = unpack2x16float(words[place.z + row * ${groups}u + unit / ${per_group}u]);
    return vec4<f32>(two.x, two.x, two.y, two.y);
""",
    "half_min_16": """    let one = unpack2x16float(words[place.z + 2u * at]);
    let two = unpack2x16float(words[place.z + 2u * at + 1u]);
    return vec4<f32>(one.x, two.x, one.y, two.y);
""",
    "float": "    let scale = bitcast<f32>(words[place.z + row * ${groups}u + unit / ${per_group}u]);\n" + _ONE,
    "float_16": """    let first = bitcast<f32>(words[place.z + 2u * at]);
    let two = vec2<f32>(first, bitcast<f32>(words[place.z + 2u * at + 1u]));
    return vec4<f32>(two, ${offset}.0 * two);
""",
    "float_min": """    let number = place.z + 2u * (row * ${groups}u + unit / ${per_group}u);
    let two = vec2<f32>(bitcast<f32>(words[number]), bitcast<f32>(words[number + 1u]));
    return vec4<f32>(two.x, two.x, two.y, two.y);
""",
    "float_min_16": """    let number = place.z + 4u * at;
    return vec4<f32>(bitcast<f32>(words[number]), bitcast<f32>(words[number + 2u]),
        bitcast<f32>(words[number + 1u]), bitcast<f32>(words[number + 3u]));
""",
    # 16 numbers of 6 bits: eight low nibbles a word, then two words' high pairs of bits in one
    "u6": """    let block = row * ${blocks}u + unit / 8u;
    let d = unpack2x16float(words[place.w + block]);
    let lows = vec2<u32>(words[place.z + 3u * block], words[place.z + 3u * block + 1u]);
    let highs = words[place.z + 3u * block + 2u];
    let number = unit % 8u;
    let low = (lows >> vec2<u32>(4u * number)) & vec2<u32>(15u);
    let high = (vec2<u32>(highs >> (2u * number), highs >> (16u + 2u * number))) & vec2<u32>(3u);
    let both = vec2<f32>(low | (high << vec2<u32>(4u)));
    return vec4<f32>(d.x * both.x, d.x * both.x, -(d.y * both.y), -(d.y * both.y));
""",
    "u4_16": """    let block = row * ${blocks}u + unit / 8u;
    let d = unpack2x16float(words[place.w + block]);
    let bytes = words[place.z + 4u * block + unit % 8u / 2u] >> (16u * (unit % 2u));
    let scales = vec2<f32>(vec2<u32>(bytes & 15u, (bytes >> 8u) & 15u));
    let minima = vec2<f32>(vec2<u32>((bytes >> 4u) & 15u, (bytes >> 12u) & 15u));
    return vec4<f32>(d.x * scales, -(d.y * minima));
""",
    "i8_16": """    let block = row * ${blocks}u + unit / 8u;
    let two = unpack2x16float(words[place.w + block / 2u]);
    let d = select(two.x, two.y, (block & 1u) == 1u);
    let both = unpack4xI8(words[place.z + 4u * block + unit % 8u / 2u]);
    let scales = d * vec2<f32>(select(both.xy, both.zw, vec2<bool>(unit % 2u == 1u)));
    return vec4<f32>(scales, ${offset}.0 * scales);
""",
}
