"""CUDA C that reads 32 columns of a row of GGUF's own blocks, as files store them: see ``readers`` for what it makes.

A row is its blocks one behind the other, each with its scales: most of them lie at any even address, so words are
loaded in halves there. Grids of the iq types (``formats.families.iq``) are signed bytes in the section of high bits.
"""

from __future__ import annotations

from string import Template

from rung.formats.table import get
from rung.kernels.webgpu.layouts import UNIT, GpuLayout

_IQ4_NL = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)
_E2M1_DOUBLED = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
#: What codes, scales, groups and blocks of each type are, their offset, and the values of those that index a table.
BLOCKS = {
    "q4_0": GpuLayout("nibble", "half", offset=8),
    "q4_1": GpuLayout("nibble", "half_min"),
    "q5_0": GpuLayout("five", "half", offset=16),
    "q5_1": GpuLayout("five", "half_min"),
    "q8_0": GpuLayout("byte", "half"),
    "q2_k": GpuLayout("nibble", "u4", 16, 256),
    "q3_k": GpuLayout("three", "i8", 16, 256, 4),
    "q4_k": GpuLayout("nibble", "u6", 32, 256),
    "q5_k": GpuLayout("five", "u6", 32, 256),
    "q6_k": GpuLayout("six", "i8", 16, 256, 32),
    "iq4_nl": GpuLayout("nibble", "half", table=_IQ4_NL),
    "iq4_xs": GpuLayout("nibble", "half", 32, 256, table=_IQ4_NL),
    "mxfp4": GpuLayout("nibble", "half", table=_E2M1_DOUBLED),
    "nvfp4": GpuLayout("nibble", "half", 16, 64, table=_E2M1_DOUBLED),
    "iq2_xxs": GpuLayout("six", "half", 32, 256),
    "iq2_xs": GpuLayout("six", "half", 16, 256),
    "iq2_s": GpuLayout("six", "half", 16, 256),
    "iq3_xxs": GpuLayout("six", "half", 32, 256),
    "iq3_s": GpuLayout("six", "half", 32, 256),
    "iq1_s": GpuLayout("six", "half", 32, 256),
    "iq1_m": GpuLayout("six", "half", 16, 256),
    "tq1_0": GpuLayout("six", "half", 32, 256, 1),
    "tq2_0": GpuLayout("nibble", "half", 32, 256, 1),
}
#: The grid of a type, by what its entries are multiplied with to be whole numbers beside what is added to them.
GRIDS = {
    "iq2_xxs": ("iq2_xxs", 1),
    "iq2_xs": ("iq2_xs", 1),
    "iq2_s": ("iq2_s", 1),
    "iq3_xxs": ("iq3_xxs", 1),
    "iq3_s": ("iq3_s", 1),
    "iq1_s": ("iq1_s", 8),
    "iq1_m": ("iq1_s", 8),
}


def block_readers(name: str) -> str:
    """Return ``read_codes`` (or ``read_words``) and ``read_scales`` of a type of ``BLOCKS``; ``PARTS`` and ``ADDS`` are
    the caller's."""
    layout = BLOCKS[name]
    units = max(layout.block // UNIT, 1)
    text = _PLAIN_POSITION if units == 1 else _POSITION
    position = Template(text).substitute(units=units, bytes=get(name).block_bytes)
    looks_up = bool(layout.table)
    head = _READ_WORDS if looks_up else _READ_CODES
    scales = f"{_READ_SCALES}{position}{_SCALES[name]}}}\n"
    return f"{_HELPERS}{head}{position}{_CODES[name]}}}\n{scales}"


_HELPERS = r"""
#ifndef WORD2
#define WORD2
__device__ __forceinline__ u32 word2(const u8* p) { return ((const u16*)p)[0] | (u32)((const u16*)p)[1] << 16; }
// words at even addresses: cheaper where few are read
template <int WORDS> __device__ __forceinline__ void few_words(const u8* p, u32* w) {
    #pragma unroll
    for (int i = 0; i < WORDS; i++) w[i] = word2(p + 4 * i);
}
// words at any address, loaded from those below; nothing behind them is read
template <int WORDS> __device__ __forceinline__ void words(const u8* p, u32* w) {
    const u32* own = (const u32*)((unsigned long long)p & ~3ull);
    const u32 shift = ((unsigned long long)p & 3) * 8;
    u32 low = own[0];
    #pragma unroll
    for (int i = 0; i < WORDS; i++) {
        u32 high = 0;
        if (i < WORDS - 1 || shift) high = own[i + 1];
        w[i] = (u32)(((unsigned long long)high << 32 | low) >> shift);
        low = high;
    }
}
__device__ __forceinline__ u32 word4(const u8* p) { return *(const u32*)p; }
__device__ __forceinline__ float half_at(const u8* p) { return from_half(*(const u16*)p); }
// bit i of four is bit 0 of byte i
__device__ __forceinline__ u32 spread(u32 four) { return ((four & 15) * 0x00204081u) & 0x01010101u; }
// bytes above 0 become negative where a bit is set
__device__ __forceinline__ u32 negated(u32 w, u32 four) {
    const u32 ones = spread(four);
    return (w ^ (ones * 255u)) + ones;
}
// seven bits of signs, and an eighth that makes the number of set ones even
__device__ __forceinline__ u32 even_signs(u32 word) {
    const u32 seven = word & 127;
    u32 odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    return seven | ((odd ^ odd >> 1) & 1) << 7;
}
// the upper bytes of two pairs of 16 bits, in turns
__device__ __forceinline__ u32 upper_bytes(u32 even, u32 odd) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(even, odd, 0x7351);
#else
    return ((even >> 8) & 0x00ff00ffu) | (odd & 0xff00ff00u);
#endif
}
__device__ __forceinline__ u32 power_of_3(int n) { return n < 4 ? (0x1b090301u >> (8 * n)) & 255 : 81; }
// the digits on top of four bytes times a power of 3
__device__ __forceinline__ u32 digits(u32 w, u32 power) {
    const u32 even = ((w & 0x00ff00ffu) * power) & 0x00ff00ffu, odd = (((w >> 8) & 0x00ff00ffu) * power) & 0x00ff00ffu;
    return upper_bytes(even * 3, odd * 3);
}
// multiples of 8 as signed bytes, plus one, or minus one
__device__ __forceinline__ u32 shifted(u32 w, bool down) {
    const u32 up = w | 0x01010101u;
    return down ? ((up | 0x80808080u) - 0x02020202u) ^ (~up & 0x80808080u) : up;
}
#endif
"""
_READ_CODES = """
__device__ __forceinline__ void read_codes(const uint4* __restrict__ codes, const u32* __restrict__ highs, int row,
        int unit, int units, u32* c) {
    const u8* data = (const u8*)codes;
"""
_READ_WORDS = """
__device__ __forceinline__ void read_words(const uint4* __restrict__ codes, int row, int unit, int units, u32* q) {
    const u8* data = (const u8*)codes;
"""
_READ_SCALES = """
__device__ __forceinline__ float4 read_scales(const void* __restrict__ scales, const void* __restrict__ heads,
        const u32* __restrict__ highs, int row, int unit, int units) {
    const u8* data = (const u8*)scales;
"""
#: Blocks of one unit, and larger ones: rows are whole blocks, so that those that a thread reads together are all in the
#: same unit of theirs.
_PLAIN_POSITION = """    const u8* p = data + (long long)(row * units + unit) * $bytes;
    const int u = 0;
"""
_POSITION = """    const u8* p = data + (long long)row * (units / $units * $bytes) + unit / $units * $bytes;
    const int u = unit % $units;
"""


def _each(body: str) -> str:
    """Return the loop over the words of 16 columns."""
    return f"    #pragma unroll\n    for (int j = 0; j < 4; j++) {{\n{body}    }}\n"


def _all(body: str) -> str:
    """Return the loop over the words of 32 columns."""
    return f"    #pragma unroll\n    for (int j = 0; j < 8; j++) {{\n{body}    }}\n"


def _entries(index: str, signs: str) -> str:
    """Return the loop over four entries of eight columns: an index, and a byte of signs."""
    return f"""    #pragma unroll
    for (int k = 0; k < 4; k++) {{
        const uint2 entry = ((const uint2*)highs)[{index}];
        const u32 signs = {signs};
        c[2 * k] = negated(entry.x, signs); c[2 * k + 1] = negated(entry.y, signs >> 4);
    }}
"""


def _deltas(index: str, down: str) -> str:
    """Return the loop over four entries of eight columns, an eighth above or below."""
    return f"""    #pragma unroll
    for (int k = 0; k < 4; k++) {{
        const uint2 entry = ((const uint2*)highs)[{index}];
        const bool down = {down};
        c[2 * k] = shifted(entry.x, down); c[2 * k + 1] = shifted(entry.y, down);
    }}
"""


_NIBBLES = "c[j] = w & 0x0f0f0f0fu; c[j + 4] = (w >> 4) & 0x0f0f0f0fu;\n"
_FIFTHS = """c[j] = (w & 0x0f0f0f0fu) | spread(fifth >> (4 * j)) << 4;
        c[j + 4] = ((w >> 4) & 0x0f0f0f0fu) | spread(fifth >> (4 * j + 16)) << 4;
"""
_CODES = {
    "q4_0": "    u32 all[4];\n    few_words<4>(p + 2, all);\n"
    + _each(f"        const u32 w = all[j];\n        {_NIBBLES}"),
    "q4_1": _each(f"        const u32 w = word4(p + 4 + 4 * j);\n        {_NIBBLES}"),
    "q5_0": "    u32 all[5];\n    few_words<5>(p + 2, all);\n    const u32 fifth = all[0];\n"
    + _each(f"        const u32 w = all[j + 1];\n        {_FIFTHS}"),
    "q5_1": "    const u32 fifth = word4(p + 4);\n"
    + _each(f"        const u32 w = word4(p + 8 + 4 * j);\n        {_FIFTHS}"),
    "q8_0": "    few_words<8>(p + 2, c);\n",
    "q2_k": _all("        c[j] = (word4(p + 16 + u / 4 * 32 + 4 * j) >> (u % 4 * 2)) & 0x03030303u;\n"),
    "q3_k": "    u32 high[8];\n    words<8>(p + 32 + u / 4 * 32, c);\n    words<8>(p, high);\n"
    + _all("        c[j] = ((c[j] >> (u % 4 * 2)) & 0x03030303u) | ((high[j] >> u) & 0x01010101u) << 2;\n"),
    "q4_k": _all("        c[j] = (word4(p + 16 + u / 2 * 32 + 4 * j) >> (u % 2 * 4)) & 0x0f0f0f0fu;\n"),
    "q5_k": _all(
        "        c[j] = ((word4(p + 48 + u / 2 * 32 + 4 * j) >> (u % 2 * 4)) & 0x0f0f0f0fu)\n"
        "            | ((word4(p + 16 + 4 * j) >> u) & 0x01010101u) << 4;\n"
    ),
    "q6_k": "    u32 high[8];\n    words<8>(p + u / 4 * 64 + u % 2 * 32, c);\n"
    "    words<8>(p + 128 + u / 4 * 32, high);\n"
    + _all(
        "        c[j] = ((c[j] >> (u % 4 / 2 * 4)) & 0x0f0f0f0fu) | ((high[j] >> (u % 4 * 2)) & 0x03030303u) << 4;\n"
    ),
    "iq4_nl": "    few_words<4>(p + 2, q);\n",
    "iq4_xs": _each("        q[j] = word4(p + 8 + 16 * u + 4 * j);\n"),
    "mxfp4": "    words<4>(p + 1, q);\n",
    # of each 8 bytes the low nibbles are the first 8 columns of a group, the high ones the others
    "nvfp4": """    const u8* own = p + 4 + 16 * u;
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        const u32 first = word4(own + 4 * j), second = word4(own + 8 + 4 * j);
        q[j] = (first & 0x0f0f0f0fu) | (second & 0x0f0f0f0fu) << 4;
        q[j + 2] = ((first >> 4) & 0x0f0f0f0fu) | (second & 0xf0f0f0f0u);
    }
""",
    "iq2_xxs": "    u32 w[2];\n    few_words<2>(p + 2 + 8 * u, w);\n"
    + _entries("(w[0] >> (8 * k)) & 255", "even_signs(w[1] >> (7 * k))"),
    "iq2_xs": "    u32 w[2];\n    few_words<2>(p + 2 + 8 * u, w);\n"
    + _entries("(w[k / 2] >> (k % 2 * 16)) & 511", "even_signs(w[k / 2] >> (k % 2 * 16 + 9))"),
    "iq2_s": "    const u32 w = word2(p + 2 + 4 * u), all = word2(p + 34 + 4 * u), high = p[66 + u];\n"
    + _entries("((w >> (8 * k)) & 255) | ((high >> (2 * k)) & 3) << 8", "all >> (8 * k)"),
    "iq3_xxs": "    u32 w[2];\n    few_words<2>(p + 2 + 8 * u, w);\n    const u32 word = word2(p + 66 + 4 * u);\n"
    + _all(
        "        const u32 index = (w[j / 4] >> (j % 4 * 8)) & 255;\n"
        "        c[j] = negated(highs[index], even_signs(word >> (7 * (j / 2))) >> (j % 2 * 4));\n",
    ),
    "iq3_s": "    u32 w[2];\n    few_words<2>(p + 2 + 8 * u, w);\n"
    "    const u32 high = p[66 + u], signs = word2(p + 74 + 4 * u);\n"
    + _all(
        "        const u32 index = ((w[j / 4] >> (j % 4 * 8)) & 255) | ((high >> j) & 1) << 8;\n"
        "        c[j] = negated(highs[index], signs >> (4 * j));\n"
    ),
    "iq1_s": "    const u32 w = word2(p + 2 + 4 * u), word = *(const u16*)(p + 34 + 2 * u);\n"
    + _deltas("((w >> (8 * k)) & 255) | ((word >> (3 * k)) & 7) << 8", "word >> 15"),
    "iq1_m": "    const u32 w = word4(p + 4 * u), word = *(const u16*)(p + 32 + 2 * u);\n"
    + _deltas("((w >> (8 * k)) & 255) | ((word >> (4 * k)) & 7) << 8", "(word >> (4 * k + 3)) & 1"),
    # base 3: byte b times 3^n has digit n on top; four bytes at a time, in two pairs of 16 bits. Digits of 32 bytes are
    # units 0 to 4, of 16 bytes halves of units 5 to 7, of four bytes the last half.
    "tq1_0": """    const int n = 2 * u - 10;
    const u8* low = u < 5 ? p : p + 32;
    const u8* high = u < 5 ? p + 16 : u < 7 ? p + 32 : p + 48;
    const u32 first = power_of_3(u < 5 ? u : n), second = power_of_3(u < 5 ? u : n + 1);
    const int step = u < 7 ? 4 : 0;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        const u32 others = j == 0 ? 1 : j == 1 ? 3 : j == 2 ? 9 : 27;
        c[j] = digits(word2(low + 4 * j), first);
        c[j + 4] = digits(word2(high + step * j), u < 7 ? second : others);
    }
""",
    "tq2_0": "    words<8>(p + u / 4 * 32, c);\n" + _all("        c[j] = (c[j] >> (u % 4 * 2)) & 0x03030303u;\n"),
}
_ONE = "    return {s, s, 0.0f, 0.0f};\n"
_SIX_BITS = """    const u8* b = p + 4;
    const int scale = u < 4 ? b[u] & 63 : (b[u + 4] & 15) | (b[u - 4] >> 6) << 4;
    const int minimum = u < 4 ? b[u + 4] & 63 : b[u + 4] >> 4 | (b[u] >> 6) << 4;
    const float s = half_at(p) * (float)scale, m = -(half_at(p + 2) * (float)minimum);
    return {s, s, m, m};
"""
_FOURS = """    const float d = half_at(p);
    const float s = d * (0.5f + (float)(p[$at + u] & 15)) * 0.25f, t = d * (0.5f + (float)(p[$at + u] >> 4)) * 0.25f;
    return {s, t, 0.0f, 0.0f};
"""
_SCALES = {
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl"), "    const float s = half_at(p);\n" + _ONE),
    **dict.fromkeys(
        ("q4_1", "q5_1"), "    const float s = half_at(p), m = half_at(p + 2);\n    return {s, s, m, m};\n"
    ),
    "q2_k": """    const int one = p[2 * u], two = p[2 * u + 1];
    const float d = half_at(p + 80), m = -half_at(p + 82);
    return {d * (float)(one & 15), d * (float)(two & 15), m * (float)(one >> 4), m * (float)(two >> 4)};
""",
    # of each of both the low nibble, then two bits: numbers 2 u and 2 u + 1 have them in bytes beside each other
    "q3_k": """    const float d = half_at(p + 108);
    const u32 low = *(const u16*)(p + 96 + u % 4 * 2) >> (u / 4 * 4);
    const u32 high = *(const u16*)(p + 104 + u % 2 * 2) >> (u / 2 * 2);
    const u32 both = (low & 0x0f0fu) | (high & 0x0303u) << 4;
    return {d * (float)((int)(both & 255) - 32), d * (float)((int)(both >> 8) - 32), 0.0f, 0.0f};
""",
    **dict.fromkeys(("q4_k", "q5_k"), _SIX_BITS),
    "q6_k": """    const float d = half_at(p + 208);
    const u32 two = *(const u16*)(p + 192 + 2 * u);
    return {d * (float)(signed char)two, d * (float)(signed char)(two >> 8), 0.0f, 0.0f};
""",
    "iq4_xs": """    const int low = (p[4 + u / 2] >> (u % 2 * 4)) & 15, high = (*(const u16*)(p + 2) >> (2 * u)) & 3;
    const float s = half_at(p) * (float)((low | high << 4) - 32);
"""
    + _ONE,
    # half of 2^(e - 127), below 2^-126 without a leading one
    "mxfp4": """    union { u32 u; float f; } power;
    power.u = p[0] < 2 ? 0x00200000u << p[0] : (u32)(p[0] - 1) << 23;
    const float s = power.f;
"""
    + _ONE,
    "nvfp4": """    const float* halves = (const float*)highs;
    return {halves[p[2 * u]], halves[p[2 * u + 1]], 0.0f, 0.0f};
""",
    "iq2_xxs": "    const float s = half_at(p) * (0.5f + (float)(word2(p + 6 + 8 * u) >> 28)) * 0.25f;\n" + _ONE,
    "iq2_xs": _FOURS.replace("$at", "66"),
    "iq2_s": _FOURS.replace("$at", "74"),
    "iq3_xxs": "    const float s = half_at(p) * (0.5f + (float)(word2(p + 66 + 4 * u) >> 28)) * 0.5f;\n" + _ONE,
    "iq3_s": "    const float s = half_at(p) * (float)(1 + 2 * ((p[106 + u / 2] >> (u % 2 * 4)) & 15));\n" + _ONE,
    "iq1_s": """    const int odd = 2 * ((*(const u16*)(p + 34 + 2 * u) >> 12) & 7) + 1;
    const float s = half_at(p) * (float)odd * 0.125f;
"""
    + _ONE,
    "iq1_m": """    const u16* words = (const u16*)(p + 48);
    const u16 bits = words[0] >> 12 | (words[1] >> 12) << 4 | (words[2] >> 12) << 8 | (words[3] >> 12) << 12;
    const u32 own = words[u / 2] >> (u % 2 * 6);
    const float d = from_half(bits) * 0.125f;
    return {d * (float)(2 * (own & 7) + 1), d * (float)(2 * ((own >> 3) & 7) + 1), 0.0f, 0.0f};
""",
    "tq1_0": "    const float s = half_at(p + 52);\n" + _ONE,
    "tq2_0": "    const float s = half_at(p + 64);\n" + _ONE,
}
