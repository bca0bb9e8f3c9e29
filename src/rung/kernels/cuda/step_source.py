"""CUDA C of a whole token: what lies between the products of a decoder is part of them, or of attention.

A layer is five kernels. A product ends with what comes next: the block that is the last to end, which a counter tells,
adds, norms and quantizes the hidden states for the product behind it; where 32 rows of the gated activation are there,
the last of their blocks quantizes these. Several rows of activations (``count``) share the weights that are read; there
a kernel of its own norms, a block for each row. Attention stands in ``attention_source``. All is float32 but codes and
activations of products, and the cache. Activations are int8 with a scale for 32 columns where codes are integers, and
float32 where these index a table, in the order of ``source``; both where a model has weights of both kinds.

A product may be ``changed`` by adapters: ``down`` is multiplied with the activations in float32 before it, ``up`` with
what that gives are columns more of the product, and a DoRA's factor multiplies the sum. Each row of activations names
the adapter that it has.

The structs are those of ``driver``.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from rung.kernels.cuda.readers import Layout, readers
from rung.kernels.cuda.source import PRELUDE, SUMS, THREADS, TYPES, Source, resident, tile_of
from rung.kernels.cuda.source import dots as dots_of

#: Weights that a product has at most: q, k and v.
MOST_PARTS = 3
_UNDEFINED = "#undef OFFSET\n#undef PARTS\n#undef ADDS\n#undef FACTOR\n"
_NAMES = ("read_codes(", "read_words(", "read_scales(", "values(", "dots(", "levels[")


def sums(layouts: Sequence[Layout], count: int = 1, changed: bool = False) -> Source:
    """Return ``store``, products of weights with these layouts to float32, and ``add``, to the hidden states."""
    parts = "".join(_PART.replace("@", str(n)).replace("$x", _taken(each)) for n, each in enumerate(layouts))
    text = _dots(layouts) + _PRODUCT + _SUM.replace("$parts", parts)
    return Source(_head(_blocks(layouts, count), count, changed) + text, ("store", "add"))


def gated(layouts: Sequence[Layout], activation: str, count: int = 1, changed: bool = False) -> Source:
    """Return ``gate``: the product of two weights of as many rows, ``activation(first) * second``, quantized."""
    values = {"activation": _ACTIVATIONS[activation], "first": _taken(layouts[0]), "second": _taken(layouts[1])}
    text = _dots(layouts) + _PRODUCT + Template(_GATE).substitute(values)
    return Source(_head(_blocks(layouts, count), count, changed) + text, ("gate",))


def norms() -> Source:
    """Return ``norm_hidden``: hidden states, normed and quantized, a block for each row."""
    return Source(_head() + _PRODUCT + _NORM, ("norm_hidden",))


def downs() -> Source:
    """Return ``down_product``: what adapters multiply with activations first, a block for each row of theirs."""
    return Source(_head(changed=True) + _PRODUCT + _DOWN, ("down_product",))


def _blocks(layouts: Sequence[Layout], count: int) -> str:
    """Return how many blocks a multiprocessor is to hold at once: more spill but of codes that are nibbles."""
    if count > 1:
        return "4" if count < 4 else "3"
    light = all(resident(each) == "BLOCKS" and each.base.codes == "nibble" and not each.looks_up for each in layouts)
    if any(each.base.scale == "nested" or resident(each) == "4" for each in layouts):
        return "4"
    if any(each.looks_up and each.blocks for each in layouts):
        return "5"
    return "BLOCKS" if light else "HEAVY_BLOCKS"


def _head(blocks: str = "4", count: int = 1, changed: bool = False) -> str:
    values = {"count": count, "tile": tile_of(count), "threads": THREADS}
    defined = f"#define RESIDENT {blocks}\n#define CHANGED {int(changed)}\n"
    return defined + PRELUDE + TYPES["f32"] + Template(SUMS).substitute(values) + QUANTIZE + IS_LAST


def _dots(layouts: Sequence[Layout]) -> str:
    """Return ``dots_0`` and so on, of each layout."""
    text = ""
    for number, layout in enumerate(layouts):
        own = _UNDEFINED + readers(layout) + dots_of(layout)
        for name in _NAMES:
            own = own.replace(name, f"{name[:-1]}_{number}{name[-1]}")
        text += own
    return text


def _taken(layout: Layout) -> str:
    """Return the activations that a layout is multiplied with."""
    return "p.wide" if layout.looks_up else "p.x"


#: The 32 threads of a warp make a unit of activations as ``activations`` of ``source`` does: int8 and float32, or one.
QUANTIZE = r"""
__device__ __forceinline__ void quantize(float v, int unit, uint4* quantized, float4* floats) {
    if (floats) ((float*)(floats + unit / 32 * 256 + THREAD % 32 / 4 * 32 + unit % 32))[THREAD % 4] = v;
    if (!quantized) return;
    float most = fabsf(v);
    for (int d = 16; d; d /= 2) {
        const float other = SHUFFLE(most, d);
        most = most > other || most != most ? most : other;
    }
    const float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
    const int lane = THREAD % 32, code = rintf(v * inverse);
    int sum = code;
    for (int d = 8; d; d /= 2) sum += SHUFFLE(sum, d);
    const int other = SHUFFLE(sum, 16);
    uint4* row = quantized + unit / 32 * 96 + unit % 32;
    ((signed char*)(row + lane / 16 * 32))[lane % 16] = (signed char)code;
    if (lane == 0) {
        float4 about = {scale, 0, 0, 0};
        ((int*)&about)[1] = sum; ((int*)&about)[2] = other;
        ((float4*)row)[64] = about;
    }
}
"""
#: Whether a block is the last of those that share a counter.
IS_LAST = r"""
// whether this block is the last of so many to come here; what the others wrote can be read then, not from the L1
__device__ __forceinline__ bool is_last(int* counter, int blocks) {
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (THREAD == 0) {
        last = atomicAdd(counter, 1) == blocks - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}
"""
_PRODUCT = r"""
struct Part { const uint4* codes; const u32* highs; const void* scales; const void* heads; const float* bias;
    int rows; int first; int number; int low; };
struct Product { Part parts[3]; const uint4* x; const float4* wide; float* y; float* hidden; const float* post;
    const float* norm; uint4* quantized; float4* floats; int* counters; const char* changes; float* low; int units;
    int blocks; int size; int apart; int width; int most; float epsilon; float softcap; };

__device__ __forceinline__ float inverse_norm(float squares, int size, float epsilon) {
    __shared__ float found;
    float one[1] = {squares};
    const float sum = total<1>(one);
    if (THREAD == 0) found = 1.0f / sqrtf(sum / (float)size + epsilon);
    __syncthreads();
    const float inverse = found;
    __syncthreads();
    return inverse;
}
// where row m of activations of so many units lies
__device__ __forceinline__ uint4* codes_of(uint4* quantized, int m, int units) {
    return quantized ? quantized + m * row_vectors(units, 3) : quantized;
}
__device__ __forceinline__ float4* floats_of(float4* floats, int m, int units) {
    return floats ? floats + m * row_vectors(units, 8) : floats;
}
#if CHANGED
struct Change { const float* down; const float* up; const float* factor; int rank; int none; };
// what the adapter of row m changes of a weight, 0 for nothing
__device__ __forceinline__ const Change* change_of(const Product& p, const Part& w, int m) {
    const Change* all = *(const Change* const*)(p.changes + 4ll * m * p.apart);
    return all && all[w.number].rank ? all + w.number : 0;
}
// up of rows [first, first + TILE) times what down gave: columns more of the product
__device__ __forceinline__ void add_changes(const Product& p, const Part& w, float* sums, int first, int rows) {
    for (int m = 0; m < COUNT; m++) {
        const Change* change = change_of(p, w, m);
        const int rank = change ? change->rank : 0;
        for (int i = THREAD; i < rank; i += THREADS) {
            const float low = p.low[(m * 3 + w.low) * p.most + i];
            #pragma unroll
            for (int n = 0; n < COUNT * TILE; n++)
                if (n / TILE == m)
                    sums[n] = fmaf(change->up[(long long)min(first + n % TILE, rows - 1) * rank + i], low, sums[n]);
        }
    }
}
__device__ __forceinline__ const float* factor_of(const Product& p, const Part& w, int m, int row) {
    const Change* change = change_of(p, w, m);
    return change && change->factor ? change->factor + row : 0;
}
#endif
// hidden += post norm of y, where there is one; then the norm of hidden as int8, four loads at a time, of row m:
// one block does this while all others wait
__device__ void finish_hidden(const Product& p, int m) {
    volatile float* hidden = p.hidden + (long long)m * p.apart;
    volatile const float* y = p.y + (long long)m * p.size;
    float squares = 0;
    if (p.post) {
        for (int i = THREAD; i < p.size; i += THREADS) { const float v = y[i]; squares = fmaf(v, v, squares); }
        const float inverse = inverse_norm(squares, p.size, p.epsilon);
        for (int i = THREAD; i < p.size; i += THREADS) hidden[i] = hidden[i] + y[i] * inverse * p.post[i];
    }
    squares = 0;
    for (int i = THREAD; i < p.size; i += THREADS) { const float v = hidden[i]; squares = fmaf(v, v, squares); }
    const float inverse = inverse_norm(squares, p.size, p.epsilon);
    const int units = p.size / 32, step = THREADS / 32;
    for (int first = THREAD / 32; first < units; first += 4 * step) {
        float v[4];
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const int i = 32 * min(first + n * step, units - 1) + THREAD % 32;
            v[n] = hidden[i] * inverse * p.norm[i];
        }
        #pragma unroll
        for (int n = 0; n < 4; n++)
            if (first + n * step < units)
                quantize(v[n], first + n * step, codes_of(p.quantized, m, units), floats_of(p.floats, m, units));
    }
}
"""
_PART = """    {
        const Part& w = p.parts[@];
        const int blocks = (w.rows + TILE - 1) / TILE;
        if (block >= 0 && block < blocks) {
            dots_@(w.codes, w.highs, w.scales, w.heads, $x, sums, block * TILE, w.rows, p.units);
            own = block * TILE + THREAD % TILE; row = start + own; bias = w.bias;
            there = THREAD < COUNT * TILE && own < w.rows;
#if CHANGED
            add_changes(p, w, sums, block * TILE, w.rows);
            if (there) factor = factor_of(p, w, THREAD / TILE, own);
#endif
        }
        block -= blocks; start += w.rows;
    }
"""
_SUM = """
__device__ __forceinline__ bool product(const Product& p, int& row, float& sum) {
    int block = blockIdx.x, start = 0, own = 0;
    bool there = false;
    const float *bias = 0, *factor = 0;
    float sums[COUNT * TILE] = {};
$parts    sum = total<COUNT * TILE>(sums);
    if (there && factor) sum *= *factor;
    if (there && bias) sum += bias[own];
    return there;
}
extern "C" __global__ void BOUNDS(THREADS, RESIDENT) store(Product p) {
    int row = 0;
    float sum;
    if (!product(p, row, sum)) return;
    if (p.softcap > 0) sum = p.softcap * tanhf(sum / p.softcap);
    p.y[(long long)(THREAD / TILE) * p.width + row] = sum;
}
extern "C" __global__ void BOUNDS(THREADS, RESIDENT) add(Product p) {
    int row = 0;
    float sum;
    if (product(p, row, sum)) {
        const int m = THREAD / TILE;
        if (p.post) p.y[(long long)m * p.size + row] = sum;
        else p.hidden[(long long)m * p.apart + row] += sum;
    }
#if COUNT == 1
    if (is_last(p.counters, p.blocks)) finish_hidden(p, 0);
#endif
}
"""
_ACTIVATIONS = {
    "silu": "x / (1.0f + expf(-x))",
    "gelu_tanh": "0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)))",
}
_GATE = """
__device__ __forceinline__ float activation(float x) { return $activation; }
extern "C" __global__ void BOUNDS(THREADS, RESIDENT) gate(Product p) {
    const int first = blockIdx.x * TILE, unit = first / 32;
    const Part &a = p.parts[0], &b = p.parts[1];
    float sums[2 * COUNT * TILE] = {};
    float* behind = sums + COUNT * TILE;
    dots_0(a.codes, a.highs, a.scales, a.heads, $first, sums, a.first + first, a.first + a.rows, p.units);
    dots_1(b.codes, b.highs, b.scales, b.heads, $second, behind, b.first + first, b.first + b.rows, p.units);
#if CHANGED
    add_changes(p, a, sums, a.first + first, a.first + a.rows);
    add_changes(p, b, behind, b.first + first, b.first + b.rows);
#endif
    float sum = total<2 * COUNT * TILE>(sums);
    const int row = first + THREAD % TILE;
    if (THREAD < 2 * COUNT * TILE) {
        const Part& own = THREAD < COUNT * TILE ? a : b;
#if CHANGED
        const float* factor = factor_of(p, own, THREAD / TILE % COUNT, own.first + row);
        if (factor) sum *= *factor;
#endif
        if (own.bias) sum += own.bias[row];
    }
    const float other = SHUFFLE(sum, COUNT * TILE);
    if (THREAD < COUNT * TILE) p.y[(long long)(THREAD / TILE) * p.width + row] = activation(sum) * other;
    if (!is_last(p.counters + unit, 32 / TILE)) return;
    for (int m = THREAD / 32; m < COUNT; m += THREADS / 32) {
        const float v = ((volatile const float*)p.y)[(long long)m * p.width + 32 * unit + THREAD % 32];
        quantize(v, unit, codes_of(p.quantized, m, p.width / 32), floats_of(p.floats, m, p.width / 32));
    }
}
"""
_NORM = """
extern "C" __global__ void norm_hidden(Product p) { finish_hidden(p, blockIdx.x); }
"""
_DOWN = """
extern "C" __global__ void down_product(Product p) {
    const int m = blockIdx.y, part = blockIdx.x / p.most, i = blockIdx.x % p.most;
    const Change* change = change_of(p, p.parts[part], m);
    if (!change || i >= change->rank) return;
    const float4* x = p.wide + m * row_vectors(p.units, 8);
    const float4* row = (const float4*)change->down + (long long)i * p.units * 8;
    float sums[1] = {};
    for (int v = THREAD; v < 8 * p.units; v += THREADS) {
        const float4 a = row[v], b = x[v / 256 * 256 + v % 8 * 32 + v / 8 % 32];
        sums[0] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sums[0]))));
    }
    const float sum = total<1>(sums);
    if (THREAD == 0) p.low[(m * 3 + part) * p.most + i] = sum;
}
"""
