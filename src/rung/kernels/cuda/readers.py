"""CUDA C that reads 32 columns of a row: their codes, and their scales.

Codes that are integers become 8 words of four signed bytes, in the order of the columns; ``OFFSET`` is to be added to
each, and the product with the scale to be multiplied with ``FACTOR``. Codes that index a table become 8 vectors of
float32. Scales are (of the first 16 columns, of the others, minimum of these, of those).
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

from rung.core.types import Format
from rung.kernels.cuda.block_readers import BLOCKS, block_readers
from rung.kernels.webgpu.layouts import FLOATS, UNIT, GpuLayout

#: Formats whose stored parts are read as they are, beside GGUF's types (``BLOCKS``), which can also be packed.
STORED = ("nf4", "fp4", "int8", "llm_int8")
#: What weights of llm_int8 are multiplied with at last: 1 / 127 in float32.
_INT8 = 7.874015718698502e-3


@dataclass(frozen=True)
class Layout:
    """A layout of ``kernels.webgpu``, or one of the stored ones; each weight is multiplied with ``factor``.

    ``blocks`` is the type of GGUF whose blocks are read as they are, or none; ``base`` then says what is in them."""

    base: GpuLayout
    factor: float = 1.0
    blocks: str = ""

    @property
    def looks_up(self) -> bool:
        """Return whether codes index a table of float32, and activations stay what they are; else activations are
        int8 with a scale for 32."""
        return bool(self.base.table)

    @property
    def adds(self) -> bool:
        """Return whether scales come with minima."""
        return self.base.scale in ("half_min", "float_min", "u6", "u4")


def stored(format: Format) -> Layout:
    """Return the layout of a format of ``STORED``, of GGUF's blocks, or of floats, whose rows alone are read."""
    from rung.formats.families.codebook4 import CODEBOOKS  # and NumPy, which plans do without

    family = format.name.split(":")[0]
    if family in FLOATS:
        return Layout(GpuLayout(family))
    if family in CODEBOOKS:
        scale = "nested" if format.nested else "float"
        table = tuple(map(float, CODEBOOKS[family]))
        return Layout(GpuLayout("pairs", scale, format.block, format.block, 0, table))
    if family in BLOCKS:
        return Layout(BLOCKS[family], blocks=family)
    return Layout(GpuLayout("byte", "row", UNIT, UNIT), _INT8 if family == "llm_int8" else 1.0)


#: Bytes to one side of a whole byte's middle.
_MIDDLE = 128


def readers(layout: Layout) -> str:
    """Return the functions ``read_codes`` (or ``read_values``) and ``read_scales`` of a layout."""
    base = layout.base
    scale = base.scale + ("_16" if base.group < UNIT else "")
    values = {
        "units_a_block": max(base.block // UNIT, 1),
        "units_a_group": max(base.group // UNIT, 1),
        "table": ", ".join(f"{value!r}f" for value in base.table),
    }
    head = f"#define OFFSET {_MIDDLE if base.codes == 'unsigned' else -base.offset}\n"
    head += f"#define PARTS {2 if base.group < UNIT else 1}\n#define ADDS {int(layout.adds)}\n"
    head += f"#define FACTOR {layout.factor!r}f\n"
    if layout.blocks:
        values_of = _LEVELS + _VALUES["nibble"] if layout.looks_up else ""
        return head + Template(values_of).substitute(values) + block_readers(layout.blocks)
    codes = _LEVELS + _READ_WORDS + _VALUES[base.codes] if layout.looks_up else _CODES[base.codes]
    return head + Template(codes + _SCALES_HEAD + _SCALES[scale] + "}\n").substitute(values)


_CODES_HEAD = """
__device__ __forceinline__ void read_codes(const uint4* __restrict__ codes, const u32* __restrict__ highs, int row,
        int unit, int units, u32* c) {
    const int at = row * units + unit;
"""
_BYTES = (
    _CODES_HEAD
    + """    const uint4 first = codes[2 * at], second = codes[2 * at + 1];
    c[0] = first.x$flip; c[1] = first.y$flip; c[2] = first.z$flip; c[3] = first.w$flip;
    c[4] = second.x$flip; c[5] = second.y$flip; c[6] = second.z$flip; c[7] = second.w$flip;
}
"""
)
_CODES = {
    "nibble": _CODES_HEAD
    + """    const uint4 w = codes[at];
    c[0] = w.x & 0x0f0f0f0fu; c[1] = w.y & 0x0f0f0f0fu; c[2] = w.z & 0x0f0f0f0fu; c[3] = w.w & 0x0f0f0f0fu;
    c[4] = (w.x >> 4) & 0x0f0f0f0fu; c[5] = (w.y >> 4) & 0x0f0f0f0fu;
    c[6] = (w.z >> 4) & 0x0f0f0f0fu; c[7] = (w.w >> 4) & 0x0f0f0f0fu;
}
""",
    "six": _CODES_HEAD
    + """    const uint4 w = codes[at];
    const uint2 high = ((const uint2*)highs)[at];
    const u32 q[4] = {w.x, w.y, w.z, w.w};
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        c[j] = (q[j] & 0x0f0f0f0fu) | (((high.x >> (2 * j)) & 0x03030303u) << 4);
        c[j + 4] = ((q[j] >> 4) & 0x0f0f0f0fu) | (((high.y >> (2 * j)) & 0x03030303u) << 4);
    }
}
""",
    "five": _CODES_HEAD
    + """    const uint4 w = codes[at];
    const u32 fifth = highs[at], q[4] = {w.x, w.y, w.z, w.w};
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        c[j] = (q[j] & 0x0f0f0f0fu) | ((fifth << (4 - j)) & 0x10101010u);
        c[j + 4] = ((q[j] >> 4) & 0x0f0f0f0fu) | ((fifth >> j) & 0x10101010u);
    }
}
""",
    "three": _CODES_HEAD
    + """    const uint2 w = ((const uint2*)codes)[at];
    const u32 high = highs[at];
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        c[j] = ((w.x >> (2 * j)) & 0x03030303u) | (((high >> j) & 0x01010101u) << 2);
        c[j + 4] = ((w.y >> (2 * j)) & 0x03030303u) | (((high >> (j + 4)) & 0x01010101u) << 2);
    }
}
""",
    "byte": _BYTES.replace("$flip", ""),
    "unsigned": _BYTES.replace("$flip", " ^ 0x80808080u"),
}
_LEVELS = """
__device__ const float levels[16] = {$table};
"""
_READ_WORDS = """
__device__ __forceinline__ void read_words(const uint4* __restrict__ codes, int row, int unit, int units, u32* q) {
    const uint4 w = codes[row * units + unit];
    q[0] = w.x; q[1] = w.y; q[2] = w.z; q[3] = w.w;
}
"""
_VALUES = {
    # the four columns 4 i to 4 i + 3
    "nibble": """
__device__ __forceinline__ float4 values(Table table, const u32* q, int i) {
    const u32 w = (i < 4 ? q[i] << 2 : q[i - 4] >> 2) & 0x3c3c3c3cu;
    return {level(table, w, 0), level(table, w, 1), level(table, w, 2), level(table, w, 3)};
}
""",
    "pairs": """
__device__ __forceinline__ float4 values(Table table, const u32* q, int i) {
    const u32 high = (q[i / 2] >> 2) & 0x3c3c3c3cu, low = (q[i / 2] << 2) & 0x3c3c3c3cu;
    const int k = i % 2 * 2;
    return {level(table, high, k), level(table, low, k), level(table, high, k + 1), level(table, low, k + 1)};
}
""",
}
_SCALES_HEAD = """
__device__ __forceinline__ float4 read_scales(const void* __restrict__ scales, const void* __restrict__ heads,
        const u32* __restrict__ highs, int row, int unit, int units) {
    const int at = row * units + unit;
"""
_SCALES = {
    "row": "    const float s = ((const float*)scales)[row];\n    return {s, s, 0.0f, 0.0f};\n",
    "half": """    const float s = from_half(((const u16*)scales)[at / $units_a_group]);
    return {s, s, 0.0f, 0.0f};
""",
    "half_16": """    const u32 two = ((const u32*)scales)[at];
    return {low_half(two), high_half(two), 0.0f, 0.0f};
""",
    "half_min": """    const u32 two = ((const u32*)scales)[at / $units_a_group];
    const float s = low_half(two), m = high_half(two);
    return {s, s, m, m};
""",
    "half_min_16": """    const uint2 two = ((const uint2*)scales)[at];
    return {low_half(two.x), low_half(two.y), high_half(two.x), high_half(two.y)};
""",
    "float": "    const float s = ((const float*)scales)[at / $units_a_group];\n    return {s, s, 0.0f, 0.0f};\n",
    "float_16": """    const float2 two = ((const float2*)scales)[at];
    return {two.x, two.y, 0.0f, 0.0f};
""",
    "float_min": """    const float2 two = ((const float2*)scales)[at / $units_a_group];
    return {two.x, two.x, two.y, two.y};
""",
    "float_min_16": """    const float4 all = ((const float4*)scales)[at];
    return {all.x, all.z, all.y, all.w};
""",
    # bytes that index 256 values, times the float32 of 256 of them, plus one number behind those values
    "nested": """    const int block = at / $units_a_group;
    const float s = ((const float*)highs)[((const u8*)scales)[block]] * ((const float*)heads)[block >> 8]
        + ((const float*)highs)[256];
    return {s, s, 0.0f, 0.0f};
""",
    # 16 numbers of 6 bits: eight low nibbles a word, then two words' high pairs of bits in one
    "u6": """    const int block = at / 8, number = at % 8;
    const u32 d = ((const u32*)heads)[block];
    const u32* words = (const u32*)scales + 3 * block;
    const u32 high = words[2];
    const u32 scale = ((words[0] >> (4 * number)) & 15) | (((high >> (2 * number)) & 3) << 4);
    const u32 minimum = ((words[1] >> (4 * number)) & 15) | (((high >> (16 + 2 * number)) & 3) << 4);
    const float s = low_half(d) * (float)scale, m = -(high_half(d) * (float)minimum);
    return {s, s, m, m};
""",
    "u4_16": """    const int block = at / 8;
    const u32 d = ((const u32*)heads)[block], two = ((const u16*)scales)[at];
    const float s = low_half(d), m = -high_half(d);
    return {s * (float)(two & 15), s * (float)((two >> 8) & 15), m * (float)((two >> 4) & 15), m * (float)(two >> 12)};
""",
    "i8_16": """    const float d = from_half(((const u16*)heads)[at / 8]);
    const u32 two = ((const u16*)scales)[at];
    return {d * (float)(signed char)two, d * (float)(signed char)(two >> 8), 0.0f, 0.0f};
""",
}
