"""CUDA C of attention in a whole token: turns q and k, stores k and v, attends and quantizes the sums.

Each head has a block for up to ``PART`` positions and more blocks beyond; the last of them to end joins their sums. How
positions are cut depends on the position of the token alone. Ref: Flash-Decoding, https://pytorch.org/blog/flash-decoding/.
A cache in q8_0 lies as ``kernels.webgpu.attention`` has it: bytes, then scales in bfloat16.
"""

from __future__ import annotations

from string import Template

from rung.kernels.cuda.source import PRELUDE, THREADS, TYPES, Source
from rung.kernels.cuda.step_source import IS_LAST, QUANTIZE

#: Positions that a block attends to before there is a second one, and blocks of a head at most: a warp joins them.
PART, MOST_PARTS = 128, 32


def attention(head_dim: int, interleaved: bool, dtype: str) -> Source:
    """Return ``attend``, for heads of a multiple of 32 values and a cache in f32, f16 or q8_0."""
    values = {"interleaved": int(interleaved), "threads": THREADS, "part": PART}
    text = (_CODES if dtype == "q8_0" else TYPES[dtype] + _NUMBER[dtype] + _FLOATS) + _ATTEND
    head = PRELUDE + f"#define THREADS {THREADS}\n#define SIZE {head_dim}\n" + QUANTIZE + IS_LAST + _SPOT
    return Source(head + Template(text).substitute(values), ("attend",))


def parts_of(context: int) -> int:
    """Return how many blocks a head has for so many positions."""
    return min(MOST_PARTS, -(-context // PART))


def part_floats(head_dim: int) -> int:
    """Return how many float32 a block leaves: its sums, the largest score and the sum of weights."""
    return head_dim + 2


_NUMBER = {
    "f32": "__device__ __forceinline__ float wide(value v) { return v; }\n",
    "f16": "__device__ __forceinline__ float wide(value v) { return from_half(v); }\n",
}
#: Where a head has a position: its numbers, and of a cache in q8_0 its scales, in bytes behind those of the layer.
_SPOT = """
struct Spot { long long at; long long scales; };
"""
#: ``cached``: a number of a key or a value. ``keep``: the same as it would be read, which is written where it
#: ``stores``; a warp has 32 that follow each other.
_FLOATS = r"""
__device__ __forceinline__ float cached(const char* base, Spot spot, int i) {
    return wide(((const value*)(base + spot.at))[i]);
}
__device__ __forceinline__ float keep(char* base, Spot spot, int i, float v, bool stores) {
    const value kept = narrow(v);
    if (stores) ((value*)(base + spot.at))[i] = kept;
    return wide(kept);
}
"""
_CODES = r"""
__device__ __forceinline__ float of_bits(u32 bits) { union { u32 u; float f; } v; v.u = bits; return v.f; }
__device__ __forceinline__ u32 bits_of(float f) { union { u32 u; float f; } v; v.f = f; return v.u; }
__device__ __forceinline__ float cached(const char* base, Spot spot, int i) {
    const float scale = of_bits((u32)((const u16*)(base + spot.scales))[i / 32] << 16);
    return scale * (float)((const signed char*)(base + spot.at))[i];
}
__device__ __forceinline__ float keep(char* base, Spot spot, int i, float v, bool stores) {
    float most = fabsf(v);
    for (int d = 16; d; d /= 2) {
        const float other = SHUFFLE(most, d);
        most = most > other || most != most ? most : other;  // NaN stays
    }
    const float size = most / 127.0f;
    const bool odd = !(most <= 3.4e38f);
    const u32 bits = odd ? 0x7fc0 : (bits_of(size) + 0xffff) >> 16;  // rounded up: no code is beyond 127 in size
    const float scale = of_bits(bits << 16), inverse = size > 1e-30f ? 1.0f / scale : 0.0f, y = v * inverse;
    const int code = odd ? 0 : min(127, (int)(y + (y < 0 ? -0.5f : 0.5f)));
    if (stores) {
        ((signed char*)(base + spot.at))[i] = (signed char)code;
        if (i % 32 == 0) ((u16*)(base + spot.scales))[i / 32] = (u16)bits;
    }
    return odd ? scale : scale * (float)code;
}
"""
_ATTEND = r"""
#define LANES (SIZE / 32)
#define THREADS $threads
#define WARPS (THREADS / 32)
#define ROWS 4  // positions that a warp reads at once: their loads and sums overlap
#define PART $part
struct Attend { const float* qkv; const float* q_norm; const float* k_norm; const float* turn; char* keys;
    char* values; const int* info; uint4* quantized; float4* floats;
    float* left; int* counters; long long block_bytes; int head; int row;
    int heads; int kv_heads; int half; int window; int table; int block;
    int most_parts; int apart; float scale; float softcap; float epsilon; };

// where keys or values of a head lie at a position: a sequence mostly has one block
__device__ __forceinline__ Spot place(const Attend& p, int kv, int at) {
    const int number = at < p.block ? 0 : at / p.block;
    const long long block = p.info[p.table + number] * p.block_bytes;
    const long long head = block + (long long)kv * p.head, own = at - number * p.block;
    return {head + own * p.row, head + (long long)p.block * p.row + own * (SIZE / 16)};
}

// the sums of a head's parts, each with the largest score and the sum of weights behind it, added by their shares
__device__ void join(const Attend& p, const float* left, int parts, int unit) {
    __shared__ float shares[32];
    volatile const float* each = left;
    const int lane = THREAD % 32, warp = THREAD / 32;
    if (warp == 0) {
        const float own = lane < parts ? each[lane * (SIZE + 2) + SIZE] : -3.4e38f;
        float most = own;
        for (int d = 16; d; d /= 2) most = fmaxf(most, SHUFFLE(most, d));
        const float share = lane < parts ? expf(own - most) : 0.0f;
        float all = lane < parts ? share * each[lane * (SIZE + 2) + SIZE + 1] : 0.0f;
        warp_sums<1>(&all);
        shares[lane] = share / all;
    }
    __syncthreads();
    for (int j = warp; j < LANES; j += WARPS) {
        float sum = 0.0f;
        #pragma unroll 8
        for (int n = 0; n < parts; n++) sum = fmaf(shares[n], each[n * (SIZE + 2) + lane + 32 * j], sum);
        quantize(sum, unit + j, p.quantized, p.floats);
    }
}

extern "C" __global__ void BOUNDS(THREADS, 4) attend(Attend p) {
    __shared__ float both[2][SIZE], given[SIZE];
    __shared__ float tops[WARPS], weights[WARPS], found[WARPS][SIZE];
    const int m = blockIdx.x / p.heads;  // the row of activations
    {
        const int units = p.heads * LANES;
        p.qkv += (long long)m * (p.heads + 2 * p.kv_heads) * SIZE;
        p.turn += (long long)m * p.apart; p.info += (long long)m * p.apart;
        if (p.quantized) p.quantized += m * row_vectors(units, 3);
        if (p.floats) p.floats += m * row_vectors(units, 8);
        p.left += (long long)m * p.heads * p.most_parts * (SIZE + 2); p.counters += m * p.heads;
    }
    const int h = blockIdx.x % p.heads, kv = h / (p.heads / p.kv_heads), lane = THREAD % 32, warp = THREAD / 32;
    const int position = p.info[0], part = blockIdx.y;
    const int begin = p.window && position >= p.window ? position + 1 - p.window : 0, count = position + 1 - begin;
    const int parts = min(p.most_parts, (count + PART - 1) / PART);
    if (part >= parts || position < 0) return;  // a row that is none has no position
    const int length = (count + parts - 1) / parts;
    const int first = begin + part * length, end = min(first + length, position + 1);
    float* q = both[0];
    float* k = both[1];
    if (warp < 2) {
        const float* x = p.qkv + (warp == 0 ? h : p.heads + kv) * SIZE;
        const float* norm = warp == 0 ? p.q_norm : p.k_norm;
        float inverse = 1.0f, squares = 0.0f;
        for (int j = 0; j < LANES; j++) squares = fmaf(x[lane + 32 * j], x[lane + 32 * j], squares);
        warp_sums<1>(&squares);
        if (norm) inverse = 1.0f / sqrtf(squares / (float)SIZE + p.epsilon);
        for (int j = 0; j < LANES; j++) {
            const int i = lane + 32 * j;
            both[warp][i] = norm ? x[i] * inverse * norm[i] : x[i];
        }
    }
    __syncthreads();
    for (int i = THREAD; i < 2 * p.half; i += THREADS) {
        float* x = both[i / p.half];
        const int n = i % p.half, a = $interleaved ? 2 * n : n, b = $interleaved ? 2 * n + 1 : n + p.half;
        const float c = p.turn[n], s = p.turn[p.half + n], one = x[a] * c - x[b] * s, two = x[b] * c + x[a] * s;
        x[a] = one; x[b] = two;
    }
    __syncthreads();
    const Spot here = place(p, kv, position);
    const bool stores = end > position && h % (p.heads / p.kv_heads) == 0;
    for (int i = THREAD; i < SIZE; i += THREADS) {
        k[i] = keep(p.keys, here, i, k[i], stores);
        given[i] = keep(p.values, here, i, p.qkv[(p.heads + p.kv_heads + kv) * SIZE + i], stores);
    }
    __syncthreads();
    float top = -3.4e38f, weight = 0.0f, sums[LANES] = {};
    for (int at = first + ROWS * warp; at < end; at += ROWS * WARPS) {
        float scores[ROWS], read[ROWS][LANES];
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = min(at + r, end - 1);
            const bool own = row == position;
            const Spot there = place(p, kv, row);
            scores[r] = 0.0f;
            #pragma unroll
            for (int j = 0; j < LANES; j++) {
                const int i = lane + 32 * j;
                scores[r] = fmaf(q[i], own ? k[i] : cached(p.keys, there, i), scores[r]);
                read[r][j] = own ? given[i] : cached(p.values, there, i);
            }
        }
        warp_sums<ROWS>(scores);
        float higher = top;
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            scores[r] *= p.scale;
            if (p.softcap > 0) scores[r] = p.softcap * tanhf(scores[r] / p.softcap);
            higher = fmaxf(higher, scores[r]);
        }
        const float kept = expf(top - higher);
        top = higher; weight *= kept;
        #pragma unroll
        for (int j = 0; j < LANES; j++) sums[j] *= kept;
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float now = at + r < end ? expf(scores[r] - higher) : 0.0f;
            weight += now;
            #pragma unroll
            for (int j = 0; j < LANES; j++) sums[j] = fmaf(now, read[r][j], sums[j]);
        }
    }
    for (int j = 0; j < LANES; j++) found[warp][lane + 32 * j] = sums[j];
    if (lane == 0) { tops[warp] = top; weights[warp] = weight; }
    __syncthreads();
    float* left = p.left + (long long)h * p.most_parts * (SIZE + 2);
    for (int j = warp; j < LANES; j += WARPS) {
        float most = tops[0], all = 0.0f, sum = 0.0f;
        for (int w = 1; w < WARPS; w++) most = fmaxf(most, tops[w]);
        for (int w = 0; w < WARPS; w++) {
            const float share = expf(tops[w] - most);
            all = fmaf(share, weights[w], all);
            sum = fmaf(share, found[w][lane + 32 * j], sum);
        }
        if (parts == 1) {
            quantize(sum / all, h * LANES + j, p.quantized, p.floats);
            continue;
        }
        float* mine = left + part * (SIZE + 2);
        mine[lane + 32 * j] = sum;
        if (j == 0 && lane == 0) { mine[SIZE] = most; mine[SIZE + 1] = all; }
    }
    if (parts > 1 && is_last(p.counters + h, parts)) join(p, left, parts, h * LANES);
}
"""
