"""CUDA C of attention in a whole token: turns q and k, stores k and v, attends and quantizes the sums.

Each head has a block for up to ``PART`` positions and more blocks beyond; the last of them to end joins their sums. How
positions are cut depends on the position of the token alone. Ref: Flash-Decoding, https://pytorch.org/blog/flash-decoding/.
"""

from __future__ import annotations

from string import Template

from rung.kernels.cuda.source import PRELUDE, THREADS, TYPES, Source
from rung.kernels.cuda.step_source import IS_LAST, QUANTIZE

#: Positions that a block attends to before there is a second one, and blocks of a head at most: a warp joins them.
PART, MOST_PARTS = 128, 32


def attention(head_dim: int, interleaved: bool, dtype: str) -> Source:
    """Return ``attend``, for heads of a multiple of 32 values and a cache in f32 or f16."""
    values = {"size": head_dim, "interleaved": int(interleaved), "threads": THREADS, "part": PART}
    text = TYPES[dtype] + _NUMBER[dtype] + _ATTEND
    head = PRELUDE + f"#define THREADS {THREADS}\n" + QUANTIZE + IS_LAST
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
_ATTEND = r"""
#define SIZE $size
#define LANES (SIZE / 32)
#define THREADS $threads
#define WARPS (THREADS / 32)
#define ROWS 4  // positions that a warp reads at once: their loads and sums overlap
#define PART $part
struct Attend { const float* qkv; const float* q_norm; const float* k_norm; const float* turn; char* keys;
    char* values; const int* info; uint4* made; float4* floats;
    float* left; int* counters; long long block_bytes; int head; int row;
    int heads; int kv_heads; int half; int window; int table; int block;
    int most_parts; float scale; float softcap; float epsilon; };

// where keys or values of a head lie at a position, in bytes behind those of the layer: a sequence mostly has one block
__device__ __forceinline__ long long place(const Attend& p, int kv, int at) {
    const int number = at < p.block ? 0 : at / p.block;
    const long long block = p.info[p.table + number] * p.block_bytes;
    return block + (long long)kv * p.head + (long long)(at - number * p.block) * p.row;
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
        quantize(sum, unit + j, p.made, p.floats);
    }
}

extern "C" __global__ void BOUNDS(THREADS, 4) attend(Attend p) {
    __shared__ float both[2][SIZE], given[SIZE];
    __shared__ float tops[WARPS], weights[WARPS], found[WARPS][SIZE];
    const int h = blockIdx.x, kv = h / (p.heads / p.kv_heads), lane = THREAD % 32, warp = THREAD / 32;
    const int position = p.info[0], part = blockIdx.y;
    const int begin = p.window && position >= p.window ? position + 1 - p.window : 0, count = position + 1 - begin;
    const int parts = min(p.most_parts, (count + PART - 1) / PART), length = (count + parts - 1) / parts;
    if (part >= parts) return;
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
    const long long here = place(p, kv, position);
    for (int i = THREAD; i < SIZE; i += THREADS) {
        const value key = narrow(k[i]), v = narrow(p.qkv[(p.heads + p.kv_heads + kv) * SIZE + i]);
        k[i] = wide(key); given[i] = wide(v);
        if (end > position && h % (p.heads / p.kv_heads) == 0) {
            ((value*)(p.keys + here))[i] = key;
            ((value*)(p.values + here))[i] = v;
        }
    }
    __syncthreads();
    float top = -3.4e38f, weight = 0.0f, sums[LANES] = {};
    for (int at = first + ROWS * warp; at < end; at += ROWS * WARPS) {
        float scores[ROWS], read[ROWS][LANES];
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = min(at + r, end - 1);
            const bool own = row == position;
            const long long there = place(p, kv, row);
            const value *key = (const value*)(p.keys + there), *v = (const value*)(p.values + there);
            scores[r] = 0.0f;
            #pragma unroll
            for (int j = 0; j < LANES; j++) {
                const int i = lane + 32 * j;
                scores[r] = fmaf(q[i], own ? k[i] : wide(key[i]), scores[r]);
                read[r][j] = own ? given[i] : wide(v[i]);
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
            quantize(sum / all, h * LANES + j, p.made, p.floats);
            continue;
        }
        float* mine = left + part * (SIZE + 2);
        mine[lane + 32 * j] = sum;
        if (j == 0 && lane == 0) { mine[SIZE] = most; mine[SIZE + 1] = all; }
    }
    if (parts > 1 && is_last(p.counters + h, parts)) join(p, left, parts, h * LANES);
}
"""
