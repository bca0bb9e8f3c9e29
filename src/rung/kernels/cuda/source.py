"""The kernels as CUDA C: products of few rows of activations, the activations they take, and weights as floats.

The text has named holes: the layout of the weight, the dtype of activations, how many rows of these share the weights
that are read (``count``). A block of 128 threads computes ``tile`` rows of the weight; a thread takes every 128th unit
of 32 columns of them. Sums are float32, fused only where the text says ``fmaf``.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

from rung.kernels.cuda.readers import Layout, readers
from rung.kernels.webgpu.layouts import UNIT

THREADS = 128
#: Rows of activations that share the weights that are read, at most.
MOST_ROWS = 16
#: Rows of activations that there are kernels for.
COUNTS = (1, 2, 4, 8)
#: Tokens that are chosen on a card one after the other at most (``draw_source``), blocks that look at a row of logits,
#: and bytes of the settings of choices and of what kernels leave for each other.
MOST_AHEAD, MOST_BLOCKS = 16, 128
CHOICE_BYTES, FOUND_BYTES = 48 + 8 * MOST_AHEAD, 4 * MOST_AHEAD + 8 * 5 + 8 * (2 * MOST_BLOCKS + 256)
#: Bytes of a unit of activations: int8 with a scale and two sums, or float32.
_INTEGER_UNIT, _FLOAT_UNIT = 48, 128


@dataclass(frozen=True)
class Source:
    """A text to compile, and the names of its kernels."""

    text: str
    kernels: tuple[str, ...]


def counts(layout: Layout) -> tuple[int, ...]:
    """Return the rows of activations that there are kernels for; more would not find room in registers."""
    return COUNTS[:-1] if layout.looks_up else COUNTS


def count_of(layout: Layout, rows: int) -> int:
    """Return the rows of activations of the smallest kernel for that many; the largest one takes them in turns."""
    found = counts(layout)
    return next((count for count in found if count >= rows), found[-1])


def tile_of(count: int) -> int:
    """Return the rows of the weight that a block computes, by the rows of activations."""
    return 4 if count == 1 else 2


def product(layout: Layout, dtype: str, count: int) -> Source:
    """Return ``multiply`` for ``count`` rows of activations, and ``activations``, which makes what it takes of them."""
    values = {"count": count, "tile": tile_of(count), "threads": THREADS, "blocks": resident(layout, count)}
    kind = dots(layout) + (_LOOKED_UP if layout.looks_up else _INTEGERS)
    body = Template(SUMS + kind).substitute(values)
    return Source(PRELUDE + TYPES[dtype] + readers(layout) + body, ("activations", "multiply"))


def activation_bytes(looks_up: bool, columns: int) -> int:
    """Return the bytes of a row of activations as ``multiply`` takes it, by whether its layout ``looks_up``."""
    return -(-columns // (32 * UNIT)) * 32 * (_FLOAT_UNIT if looks_up else _INTEGER_UNIT)


def bytes_of_rows(dtype: str) -> Source:
    """Return ``quantize_rows``: rows of activations as signed bytes with a scale each, as LLM.int8() takes them."""
    return Source(PRELUDE + TYPES[dtype] + Template(_QUANTIZE_ROWS).substitute(threads=THREADS), ("quantize_rows",))


def byte_product(dtype: str, count: int) -> Source:
    """Return ``sum_bytes``, whole numbers, and ``multiply_bytes``, these times scales of both sides in ``dtype``."""
    values = {"count": count, "tile": tile_of(count), "threads": THREADS}
    return Source(PRELUDE + TYPES[dtype] + Template(_BYTE_PRODUCT).substitute(values), ("sum_bytes", "multiply_bytes"))


def dots(layout: Layout) -> str:
    """Return ``dots``: a thread's part of the products of rows [first, first + TILE), below ``rows``."""
    return _FLOAT_DOTS if layout.looks_up else _INTEGER_DOTS


def decoding(layout: Layout, dtype: str) -> Source:
    """Return ``decode``: rows of the weight in ``dtype``."""
    text = _DECODE.replace("$values", decoded_unit(layout))
    return Source(PRELUDE + TYPES[dtype] + readers(layout) + text, ("decode",))


def decoded_unit(layout: Layout) -> str:
    """Return the text that decodes unit ``at`` of rows [first, last), which is unit ``unit`` of row ``row``."""
    return _DECODE_LOOKED_UP if layout.looks_up else _DECODE_INTEGERS


def resident(layout: Layout, count: int = 1) -> str:
    """Return how many blocks a multiprocessor is to hold at once, which bounds the registers of a thread."""
    if count > 1:
        return "4" if count < 4 else "3"
    if layout.blocks in ("q3_k", "q6_k"):  # two loads for each word of codes: more blocks spill
        return "4"
    heavy = layout.base.codes in ("six", "five", "unsigned") or layout.adds or layout.base.group < UNIT
    return "HEAVY_BLOCKS" if heavy and not layout.looks_up else "BLOCKS"


PRELUDE = r"""
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
#if defined(ON_CPU)
#elif defined(__HIP__)
__device__ __forceinline__ float from_half(u16 h) { _Float16 f; __builtin_memcpy(&f, &h, 2); return (float)f; }
__device__ __forceinline__ u16 to_half(float f) {
    _Float16 h = (_Float16)f; u16 r; __builtin_memcpy(&r, &h, 2); return r;
}
#define THREAD ((int)threadIdx.x)
#define SHUFFLE(value, distance) __shfl_xor(value, distance)
#define BOUNDS(threads, blocks) __launch_bounds__(threads)
#else
__device__ __forceinline__ float from_half(u16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
__device__ __forceinline__ u16 to_half(float f) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
#define THREAD ((int)threadIdx.x)
#define SHUFFLE(value, distance) __shfl_xor_sync(~0u, value, distance)
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 610
#define BLOCKS 6
#define HEAVY_BLOCKS 5
#else
#define BLOCKS 8
#define HEAVY_BLOCKS 6
#endif
#ifndef ON_CPU
// the sums over a warp of each of some numbers, which all of its threads get
template <int NUMBERS> __device__ __forceinline__ void warp_sums(float* sums) {
    #pragma unroll
    for (int i = 0; i < NUMBERS; i++)
        for (int d = 16; d; d /= 2) sums[i] += SHUFFLE(sums[i], d);
}
#endif
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
// 16 values in shared memory, at an address whose low eight bits are 0; ``level``: the value at four times a code,
// which is byte k of a word
#if defined(__CUDA_ARCH__)
typedef u32 Table;
__device__ __forceinline__ Table table_of(float* values) { return (u32)__cvta_generic_to_shared(values); }
__device__ __forceinline__ float level(Table table, u32 word, int k) {
    float f;
    asm("ld.shared.f32 %0, [%1];" : "=f"(f) : "r"(__byte_perm(word, table, 0x7650 + k)));
    return f;
}
#else
typedef const float* Table;
__device__ __forceinline__ Table table_of(float* values) { return values; }
__device__ __forceinline__ float level(Table table, u32 word, int k) { return table[(word >> (8 * k) & 255) / 4]; }
#endif
__device__ __forceinline__ int row_vectors(int units, int vectors) { return (units + 31) / 32 * 32 * vectors; }
__device__ __forceinline__ float low_half(u32 two) { return from_half((u16)two); }
__device__ __forceinline__ float high_half(u32 two) { return from_half((u16)(two >> 16)); }
__device__ __forceinline__ int dot4(int a, int b, int c) {
#if defined(ON_CPU) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610)
    return __dp4a(a, b, c);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) \
    || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) \
    || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) \
    || defined(__gfx1036__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#elif defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
    c += (int)(signed char)a * (int)(signed char)b; c += (int)(signed char)(a >> 8) * (int)(signed char)(b >> 8);
    c += (int)(signed char)(a >> 16) * (int)(signed char)(b >> 16); return c + (a >> 24) * (b >> 24);
#endif
}
"""
TYPES = {
    "f32": """
typedef float value;
__device__ __forceinline__ float4 read4(const value* x) { return *(const float4*)x; }
__device__ __forceinline__ value narrow(float f) { return f; }
__device__ __forceinline__ void write4(value* y, float4 v) { *(float4*)y = v; }
""",
    "f16": """
typedef u16 value;
__device__ __forceinline__ float4 read4(const value* x) {
    const uint2 w = *(const uint2*)x;
    return {low_half(w.x), high_half(w.x), low_half(w.y), high_half(w.y)};
}
__device__ __forceinline__ value narrow(float f) { return to_half(f); }
__device__ __forceinline__ void write4(value* y, float4 v) {
    *(uint2*)y = {to_half(v.x) | (u32)to_half(v.y) << 16, to_half(v.z) | (u32)to_half(v.w) << 16};
}
""",
    "bf16": """
typedef u16 value;
__device__ __forceinline__ float of_bits(u32 bits) { union { u32 u; float f; } v; v.u = bits; return v.f; }
__device__ __forceinline__ float4 read4(const value* x) {
    const uint2 w = *(const uint2*)x;
    return {of_bits(w.x << 16), of_bits(w.x & 0xffff0000u), of_bits(w.y << 16), of_bits(w.y & 0xffff0000u)};
}
__device__ __forceinline__ value narrow(float f) {
    union { u32 u; float f; } v; v.f = f;
    return (v.u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0 : (v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16;
}
__device__ __forceinline__ void write4(value* y, float4 v) {
    *(uint2*)y = {narrow(v.x) | (u32)narrow(v.y) << 16, narrow(v.z) | (u32)narrow(v.w) << 16};
}
""",
}
# sums [COUNT, TILE] of a thread to y [count, rows]
SUMS = """
#define COUNT $count
#define TILE $tile
#define THREADS $threads
// the sum over all threads of each of some numbers, which the thread of that number gets
template <int NUMBERS> __device__ __forceinline__ float total(float* sums) {
    __shared__ float parts[THREADS / 32][NUMBERS];
    warp_sums<NUMBERS>(sums);
    if (THREAD % 32 == 0) {
        #pragma unroll
        for (int i = 0; i < NUMBERS; i++) parts[THREAD / 32][i] = sums[i];
    }
    __syncthreads();
    float sum = 0;
    if (THREAD < NUMBERS) {
        #pragma unroll
        for (int w = 0; w < THREADS / 32; w++) sum += parts[w][THREAD];
    }
    return sum;
}
__device__ __forceinline__ void finish(float* sums, value* __restrict__ y, int first, int rows, int count) {
    const float sum = total<COUNT * TILE>(sums);
    const int m = blockIdx.y * COUNT + THREAD / TILE, row = first + THREAD % TILE;
    if (THREAD < COUNT * TILE && m < count && row < rows) y[(long long)m * rows + row] = narrow(sum);
}
"""
_INTEGERS = """
// x [count, columns] to, of each row and 32 units: [2, 32] times 16 signed bytes, then (scale, sums
// of both halves, 0) [32]
extern "C" __global__ void activations(const value* __restrict__ x, uint4* __restrict__ quantized, long long stride,
        int units, int count) {
    const int at = blockIdx.x * THREADS + THREAD, unit = at / 8, part = at % 8, m = blockIdx.y;
    const bool there = unit < units && m < count;
    float4 v = {0, 0, 0, 0};
    if (there) v = read4(x + m * stride + 4 * at);
    float most = fabsf(v.x);  // NaN stays
    most = most > fabsf(v.y) || most != most ? most : fabsf(v.y);
    most = most > fabsf(v.z) || most != most ? most : fabsf(v.z);
    most = most > fabsf(v.w) || most != most ? most : fabsf(v.w);
    for (int d = 4; d; d /= 2) {
        const float other = SHUFFLE(most, d);
        most = most > other || most != most ? most : other;
    }
    const float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
    const int a = rintf(v.x * inverse), b = rintf(v.y * inverse), c = rintf(v.z * inverse), d = rintf(v.w * inverse);
    int sum = a + b + c + d;
    for (int distance = 2; distance; distance /= 2) sum += SHUFFLE(sum, distance);
    const int other = SHUFFLE(sum, 4);
    if (unit >= units) return;
    uint4* row = quantized + m * row_vectors(units, 3) + unit / 32 * 96 + unit % 32;
    ((u32*)(row + part / 4 * 32))[part % 4] = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (u32)d << 24;
    if (part == 0) {
        float4 about = {scale, 0, 0, 0};
        ((int*)&about)[1] = sum; ((int*)&about)[2] = other;
        ((float4*)row)[64] = about;
    }
}

extern "C" __global__ void BOUNDS(THREADS, $blocks) multiply(const uint4* __restrict__ codes,
        const u32* __restrict__ highs, const void* __restrict__ scales, const void* __restrict__ heads,
        const uint4* __restrict__ x,
        value* __restrict__ y, int rows, int units, int count) {
    const int first = blockIdx.x * TILE;
    float sums[COUNT * TILE] = {};
    dots(codes, highs, scales, heads, x + blockIdx.y * COUNT * row_vectors(units, 3), sums, first, rows, units);
    finish(sums, y, first, rows, count);
}
"""
_INTEGER_DOTS = """
__device__ __forceinline__ void dots(const uint4* __restrict__ codes, const u32* __restrict__ highs,
        const void* __restrict__ scales, const void* __restrict__ heads, const uint4* __restrict__ x, float* sums,
        int first, int rows, int units) {
    x += THREAD / 32 * 96 + THREAD % 32;
    for (int unit = THREAD; unit < units; unit += THREADS, x += THREADS * 3) {
        u32 c[TILE][8];
        float4 s[TILE];
        #pragma unroll
        for (int r = 0; r < TILE; r++) {
            const int row = min(first + r, rows - 1);
            read_codes(codes, highs, row, unit, units, c[r]);
            s[r] = read_scales(scales, heads, highs, row, unit, units);
        }
        #pragma unroll
        for (int m = 0; m < COUNT; m++) {
            const uint4* given = x + m * row_vectors(units, 3);
            const uint4 low = given[0], high = given[32];
            const float4 about = ((const float4*)given)[64];
            const int one = ((const int*)&about)[1], two = ((const int*)&about)[2];
            #pragma unroll
            for (int r = 0; r < TILE; r++) {
#if PARTS == 2
                int t = dot4(c[r][0], low.x, OFFSET * one), u = dot4(c[r][4], high.x, OFFSET * two);
                t = dot4(c[r][1], low.y, t); t = dot4(c[r][2], low.z, t); t = dot4(c[r][3], low.w, t);
                u = dot4(c[r][5], high.y, u); u = dot4(c[r][6], high.z, u); u = dot4(c[r][7], high.w, u);
                float unscaled = fmaf(s[r].x, (float)t, s[r].y * (float)u);
#if ADDS
                unscaled = fmaf(s[r].z, (float)one, fmaf(s[r].w, (float)two, unscaled));
#endif
#else
                int t = dot4(c[r][0], low.x, OFFSET * (one + two));
                t = dot4(c[r][1], low.y, t); t = dot4(c[r][2], low.z, t); t = dot4(c[r][3], low.w, t);
                t = dot4(c[r][4], high.x, t); t = dot4(c[r][5], high.y, t); t = dot4(c[r][6], high.z, t);
                t = dot4(c[r][7], high.w, t);
                float unscaled = s[r].x * (float)t;
#if ADDS
                unscaled = fmaf(s[r].z, (float)(one + two), unscaled);
#endif
#endif
                sums[m * TILE + r] = fmaf(about.x, FACTOR * unscaled, sums[m * TILE + r]);
            }
        }
    }
}
"""
_LOOKED_UP = """
// x [count, columns] to, of each row and 32 units, vectors of four columns [8, 32]
extern "C" __global__ void activations(const value* __restrict__ x, float4* __restrict__ quantized, long long stride,
        int units, int count) {
    const int at = blockIdx.x * THREADS + THREAD, unit = at / 8, part = at % 8, m = blockIdx.y;
    if (unit >= units) return;
    float4 v = {0, 0, 0, 0};
    if (m < count) v = read4(x + m * stride + 4 * at);
    quantized[m * row_vectors(units, 8) + unit / 32 * 256 + part * 32 + unit % 32] = v;
}

extern "C" __global__ void BOUNDS(THREADS, $blocks) multiply(const uint4* __restrict__ codes,
        const u32* __restrict__ highs, const void* __restrict__ scales, const void* __restrict__ heads,
        const float4* __restrict__ x,
        value* __restrict__ y, int rows, int units, int count) {
    const int first = blockIdx.x * TILE;
    float sums[COUNT * TILE] = {};
    dots(codes, highs, scales, heads, x + blockIdx.y * COUNT * row_vectors(units, 8), sums, first, rows, units);
    finish(sums, y, first, rows, count);
}
"""
_FLOAT_DOTS = """
__device__ __forceinline__ void dots(const uint4* __restrict__ codes, const u32* __restrict__ highs,
        const void* __restrict__ scales, const void* __restrict__ heads, const float4* __restrict__ x, float* sums,
        int first, int rows, int units) {
    __shared__ ALIGNED(256) float held[16];
    if (THREAD < 16) held[THREAD] = levels[THREAD];
    __syncthreads();
    const Table table = table_of(held);
    x += THREAD / 32 * 256 + THREAD % 32;
    for (int unit = THREAD; unit < units; unit += THREADS, x += THREADS * 8) {
        u32 q[TILE][4];
        float4 s[TILE];
        #pragma unroll
        for (int r = 0; r < TILE; r++) {
            const int row = min(first + r, rows - 1);
            read_words(codes, row, unit, units, q[r]);
            s[r] = read_scales(scales, heads, highs, row, unit, units);
        }
        #pragma unroll
        for (int half = 0; half < PARTS; half++) {
            float parts[COUNT * TILE] = {};
            #pragma unroll
            for (int i = 4 * half; i < (PARTS == 2 ? 4 * half + 4 : 8); i++) {
                float4 v[COUNT];
                #pragma unroll
                for (int m = 0; m < COUNT; m++) v[m] = x[m * row_vectors(units, 8) + i * 32];
                #pragma unroll
                for (int r = 0; r < TILE; r++) {
                    const float4 w = values(table, q[r], i);
                    #pragma unroll
                    for (int m = 0; m < COUNT; m++) {
                        float t = fmaf(w.x, v[m].x, parts[m * TILE + r]);
                        t = fmaf(w.y, v[m].y, t);
                        t = fmaf(w.z, v[m].z, t);
                        parts[m * TILE + r] = fmaf(w.w, v[m].w, t);
                    }
                }
            }
            #pragma unroll
            for (int n = 0; n < COUNT * TILE; n++)
                sums[n] = fmaf(half ? s[n % TILE].y : s[n % TILE].x, parts[n], sums[n]);
        }
    }
}
"""
_DECODE = """
// rows [first, last) of the weight to y [last - first, columns]
extern "C" __global__ void decode(const uint4* __restrict__ codes, const u32* __restrict__ highs,
        const void* __restrict__ scales, const void* __restrict__ heads, value* __restrict__ y, int first, int last,
        int units) {
    const long long at = (long long)blockIdx.x * 128 + THREAD;
    const int row = first + (int)(at / units), unit = (int)(at % units);
$values}
"""
_DECODE_INTEGERS = """    if (at >= (long long)(last - first) * units) return;
    const float4 s = read_scales(scales, heads, highs, row, unit, units);
    u32 c[8];
    read_codes(codes, highs, row, unit, units, c);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const float scale = i < 4 ? s.x : s.y, minimum = i < 4 ? s.z : s.w;
        float4 v = {scale * (float)((int)(signed char)c[i] + OFFSET),
            scale * (float)((int)(signed char)(c[i] >> 8) + OFFSET),
            scale * (float)((int)(signed char)(c[i] >> 16) + OFFSET), scale * (float)(((int)c[i] >> 24) + OFFSET)};
#if ADDS
        v = {v.x + minimum, v.y + minimum, v.z + minimum, v.w + minimum};
#endif
        write4(y + 32 * at + 4 * i, {FACTOR * v.x, FACTOR * v.y, FACTOR * v.z, FACTOR * v.w});
    }
"""
_DECODE_LOOKED_UP = """    __shared__ ALIGNED(256) float held[16];
    if (THREAD < 16) held[THREAD] = levels[THREAD];
    __syncthreads();
    if (at >= (long long)(last - first) * units) return;
    const Table table = table_of(held);
    u32 q[4];
    read_words(codes, row, unit, units, q);
    const float4 s = read_scales(scales, heads, highs, row, unit, units);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const float scale = i < 4 ? s.x : s.y;
        const float4 v = values(table, q, i);
        write4(y + 32 * at + 4 * i, {scale * v.x, scale * v.y, scale * v.z, scale * v.w});
    }
"""
# what is not below the threshold is no part of its row, and marks its column
_QUANTIZE_ROWS = """
#define THREADS $threads
__device__ __forceinline__ float wide(const value* x, int i) {
    float4 v = {0, 0, 0, 0};
    value four[4] ALIGNED(16) = {x[i], x[i], x[i], x[i]};
    v = read4(four);
    return v.x;
}
extern "C" __global__ void BOUNDS(THREADS, 4) quantize_rows(const value* __restrict__ x,
        signed char* __restrict__ codes, float* __restrict__ peaks, u8* __restrict__ outliers, long long stride,
        int columns, float threshold) {
    __shared__ float parts[THREADS / 32];
    const value* row = x + blockIdx.x * stride;
    float most = 0;
    for (int i = THREAD; i < columns; i += THREADS) {
        const float size = fabsf(wide(row, i));
        if (threshold > 0 && size >= threshold) outliers[i] = 1;
        else most = most > size || most != most ? most : size;  // NaN stays
    }
    for (int d = 16; d; d /= 2) {
        const float other = SHUFFLE(most, d);
        most = most > other || most != most ? most : other;
    }
    if (THREAD % 32 == 0) parts[THREAD / 32] = most;
    __syncthreads();
    most = parts[0];
    #pragma unroll
    for (int w = 1; w < THREADS / 32; w++) most = most > parts[w] || most != most ? most : parts[w];
    const float inverse = 1.0f / most * 127.0f;  // as torch divides a number by a tensor
    for (int i = THREAD; i < columns; i += THREADS) {
        const float v = wide(row, i), code = rintf(v * inverse);
        const bool apart = threshold > 0 && fabsf(v) >= threshold;
        codes[(long long)blockIdx.x * columns + i] = apart || code != code ? 0 : (signed char)code;
    }
    if (THREAD == 0) peaks[blockIdx.x] = most;
}
"""
_BYTE_PRODUCT = """
#define COUNT $count
#define TILE $tile
#define THREADS $threads
__device__ __forceinline__ int dot16(uint4 a, uint4 b, int c) {
    return dot4(a.w, b.w, dot4(a.z, b.z, dot4(a.y, b.y, dot4(a.x, b.x, c))));
}
// the sum of row THREAD / TILE of a, that of b, whether there are such
__device__ __forceinline__ bool sum_of(const uint4* __restrict__ a, const uint4* __restrict__ b, int rows, int vectors,
        int count, int& m, int& row, int& sum) {
    __shared__ int parts[THREADS / 32][COUNT * TILE];
    const int first = blockIdx.x * TILE, above = blockIdx.y * COUNT;
    int sums[COUNT * TILE] = {};
    for (int v = THREAD; v < vectors; v += THREADS) {
        uint4 w[TILE];
        #pragma unroll
        for (int r = 0; r < TILE; r++) w[r] = b[(long long)min(first + r, rows - 1) * vectors + v];
        #pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const uint4 given = a[(long long)min(above + n, count - 1) * vectors + v];
            #pragma unroll
            for (int r = 0; r < TILE; r++) sums[n * TILE + r] = dot16(w[r], given, sums[n * TILE + r]);
        }
    }
    #pragma unroll
    for (int i = 0; i < COUNT * TILE; i++) {
        for (int d = 16; d; d /= 2) sums[i] += SHUFFLE(sums[i], d);
        if (THREAD % 32 == 0) parts[THREAD / 32][i] = sums[i];
    }
    __syncthreads();
    m = above + THREAD / TILE; row = first + THREAD % TILE; sum = 0;
    if (THREAD >= COUNT * TILE || m >= count || row >= rows) return false;
    #pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += parts[w][THREAD];
    return true;
}
// int8 a [count, columns] and b [rows, columns] to y [count, rows]
extern "C" __global__ void BOUNDS(THREADS, 4) sum_bytes(const uint4* __restrict__ a, const uint4* __restrict__ b,
        int* __restrict__ y, int rows, int vectors, int count) {
    int m, row, sum;
    if (sum_of(a, b, rows, vectors, count, m, row, sum)) y[(long long)m * rows + row] = sum;
}
// the same times the largest magnitudes of rows of both, over 127^2 in bitsandbytes' digits, and a bias or none
extern "C" __global__ void BOUNDS(THREADS, 4) multiply_bytes(const uint4* __restrict__ a, const uint4* __restrict__ b,
        value* __restrict__ y, const float* __restrict__ one, const float* __restrict__ two,
        const float* __restrict__ bias, int rows, int vectors, int count) {
    int m, row, sum;
    if (!sum_of(a, b, rows, vectors, count, m, row, sum)) return;
    float v = (float)sum * (one[m] * two[row]) * 6.200124e-05f;
    if (bias) v += bias[row];
    y[(long long)m * rows + row] = narrow(v);
}
"""
