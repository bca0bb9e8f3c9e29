"""CUDA C that chooses the token after a row of logits and begins the next token with it.

What is chosen is what ``rung.ops.sample`` chooses of the same logits, in all cases: masses are the same whole numbers,
computed in float64 in the same order, and their sums are exact. Logits are compared as integers of the same order. The
least one that a filter keeps is found by eight bits of it at a time: ``narrow`` counts tokens (top-k) or adds masses
(top-p) by these bits, and the block that is the last to end looks where the count or the sum reaches the limit.

The structs are those of ``driver``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rung.kernels.cpu.sample.record import LN2, LOG2_E, LOWEST_EXPONENT, MASS_BITS, TAYLOR
from rung.kernels.cuda.readers import Layout, readers
from rung.kernels.cuda.source import MOST_AHEAD, MOST_BLOCKS, PRELUDE, THREADS, TYPES, Source, decoded_unit
from rung.kernels.cuda.step_source import IS_LAST
from rung.kernels.webgpu.layouts import FLOATS

#: The settings of a choice: 1 / temperature, filters, random bits of each token, the token that is read first, how many
#: were chosen, and the position of the first.
CHOICE = np.dtype(
    [
        *((name, "<f8") for name in ("inverse", "top_p", "min_p")),
        *[("top_k", "<i8"), ("random", "<u8", (MOST_AHEAD,))],
        *((name, "<i4") for name in ("token", "step", "start", "none")),
    ]
)
#: The fewest logits of a block.
_LOGITS = 512
#: Digits of eight bits of a logit, the highest first.
_LEVELS = (3, 2, 1, 0)


def blocks_of(vocabulary: int) -> int:
    """Return how many blocks look at a row of logits."""
    return max(1, min(MOST_BLOCKS, vocabulary // _LOGITS))


def kernels_of(draws: bool, by_count: bool, by_mass: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield the kernels of a choice, each with its level of a filter and whether that adds masses: the likeliest is
    chosen, or one is drawn of those that top-k (``by_count``) and top-p (``by_mass``) leave."""
    yield "likeliest", 0, False
    if draws:
        yield from (("narrow", level, mass) for mass in (False, True) if (by_count, by_mass)[mass] for level in _LEVELS)
        yield "drawn", 0, False


def choosing() -> Source:
    """Return ``likeliest``, which finds the highest logit and chooses it where nothing is drawn; ``narrow``, a level of
    a filter; and ``drawn``, which draws one of the tokens that are left."""
    values = f"#define THREADS {THREADS}\n#define MOST_AHEAD {MOST_AHEAD}\n#define MOST_BLOCKS {MOST_BLOCKS}\n"
    terms = "".join(f"    value = value * y + {term!r};\n" for term in TAYLOR[1:])
    mass = _MASS.replace("$lowest", repr(LOWEST_EXPONENT)).replace("$log2_e", repr(LOG2_E)).replace("$terms", terms)
    mass = mass.replace("$first", repr(TAYLOR[0])).replace("$ln2", repr(LN2[0])).replace("$rest", repr(LN2[1]))
    return Source(
        PRELUDE + values + IS_LAST + _STRUCTS + mass.replace("$bits", str(MASS_BITS)) + _CHOICE,
        ("likeliest", "narrow", "drawn"),
    )


def embedding(layout: Layout) -> Source:
    """Return ``embed``: the row of the token that was chosen, of a weight with this layout, times a scale, to the
    hidden state; its rotations, and its position."""
    if (dtype := layout.base.codes) in FLOATS:
        text = _EMBED.replace("$values", _FLOATS)
        return Source(PRELUDE + TYPES[dtype] + _STRUCTS + text, ("embed",))
    text = _EMBED.replace("$values", decoded_unit(layout))
    return Source(PRELUDE + TYPES["f32"] + readers(layout) + _STRUCTS + text, ("embed",))


_STRUCTS = r"""
typedef unsigned long long u64;
struct Choice { double inverse, top_p, min_p; long long top_k; u64 random[16]; int token, step, start, none; };
"""
_MASS = r"""
struct Found { int chosen[MOST_AHEAD]; u64 best, limit, equals; u32 least, last, prefix; int counter;
    u64 sums[MOST_BLOCKS], counts[MOST_BLOCKS], bins[256]; };
struct Draw { const float* logits; Choice* choice; Found* found; int vocabulary, blocks, draws, level, by_mass; };

// integers of the order of numbers; NaN is the highest, zeros are equal
__device__ __forceinline__ u32 key_of(float x) {
    union { float f; u32 u; } bits;
    bits.f = x + 0.0f;
    return x != x ? ~0u : bits.u >> 31 ? ~bits.u : bits.u | 0x80000000u;
}
__device__ __forceinline__ float number(u32 key) {
    union { float f; u32 u; } bits;
    bits.u = key >> 31 ? key ^ 0x80000000u : ~key;
    return bits.f;
}
// exp((x - highest) * inverse) in units of 2^-42
__device__ __forceinline__ u64 mass(float x, double highest, double inverse) {
    double y = ((double)x - highest) * inverse;
    y = y > $lowest ? y : $lowest;
    const double power = rint(y * $log2_e);
    y -= power * $ln2;
    y -= power * $rest;
    double value = $first;
$terms    union { double d; long long i; } bits;
    bits.d = value;
    bits.i += (long long)((u64)((long long)power + $bits) << 52);
    return (u64)rint(bits.d);
}
"""
_CHOICE = r"""
__device__ __forceinline__ void choose(const Draw& p, int token) {
    p.found->chosen[p.choice->step] = token;
    p.choice->step += 1;
    p.choice->token = token < 0 ? 0 : token;
}
// the highest number of all threads, which all of them get
__device__ __forceinline__ u64 most_of(u64 own) {
    __shared__ u64 shared[THREADS];
    shared[THREAD] = own;
    for (int d = THREADS / 2; d; d /= 2) {
        __syncthreads();
        if (THREAD < d && shared[THREAD + d] > shared[THREAD]) shared[THREAD] = shared[THREAD + d];
    }
    __syncthreads();
    return shared[0];
}
extern "C" __global__ void BOUNDS(THREADS, 4) likeliest(Draw p) {
    u64 own = 0;
    for (int i = blockIdx.x * THREADS + THREAD; i < p.vocabulary; i += p.blocks * THREADS) {
        const u64 found = (u64)key_of(p.logits[i]) << 32 | (0xffffffffu - (u32)i);  // of equal ones the first
        own = found > own ? found : own;
    }
    own = most_of(own);
    if (THREAD == 0) p.found->sums[blockIdx.x] = own;
    if (!is_last(&p.found->counter, p.blocks)) return;
    const u64 best = most_of(THREAD < p.blocks ? ((volatile u64*)p.found->sums)[THREAD] : 0);
    if (THREAD) return;
    p.found->best = best;
    p.found->equals = ~0ull;
    p.found->least = p.found->last = p.found->prefix = 0;
    const u32 key = (u32)(best >> 32);
    const bool finite = key > 0x007fffffu && key < 0xff800000u;
    if (!p.draws || !finite) choose(p, finite ? (int)(0xffffffffu - (u32)best) : -1);
}
// whether the logits are numbers
__device__ __forceinline__ bool finite(const Draw& p) {
    const u32 key = (u32)(p.found->best >> 32);
    return key > 0x007fffffu && key < 0xff800000u;
}
__device__ __forceinline__ double highest_of(const Draw& p) { return (double)number((u32)(p.found->best >> 32)); }

extern "C" __global__ void BOUNDS(THREADS, 4) narrow(Draw p) {
    __shared__ u64 bins[256], groups[16];
    if (!finite(p)) return;
    for (int i = THREAD; i < 256; i += THREADS) bins[i] = 0;
    __syncthreads();
    const double highest = highest_of(p), inverse = p.choice->inverse;
    const u32 least = p.found->least, prefix = p.found->prefix;
    const int shift = 8 * p.level;
    for (int i = blockIdx.x * THREADS + THREAD; i < p.vocabulary; i += p.blocks * THREADS) {
        const u32 key = key_of(p.logits[i]);
        if (key < least || (p.level < 3 && key >> (shift + 8) != prefix >> (shift + 8))) continue;
        const u64 added = p.by_mass ? mass(p.logits[i], highest, inverse) : 1;
        if (added) atomicAdd(bins + (key >> shift & 255), added);
    }
    __syncthreads();
    for (int i = THREAD; i < 256; i += THREADS)
        if (bins[i]) atomicAdd(p.found->bins + i, bins[i]);
    if (!is_last(&p.found->counter, p.blocks)) return;
    for (int i = THREAD; i < 256; i += THREADS) {
        bins[i] = ((volatile u64*)p.found->bins)[i];
        p.found->bins[i] = 0;
    }
    __syncthreads();
    if (THREAD < 16) {
        u64 sum = 0;
        for (int i = 0; i < 16; i++) sum += bins[16 * THREAD + i];
        groups[THREAD] = sum;
    }
    __syncthreads();
    if (THREAD) return;
    u64 limit = p.found->limit;
    if (p.level == 3) {
        u64 total = 0;
        for (int i = 0; i < 16; i++) total += groups[i];
        const u64 share = (u64)ceil(p.choice->top_p * (double)total);
        limit = share < total ? share : total;
        if (!p.by_mass) limit = (u64)p.choice->top_k;
        if (!limit) limit = 1;
    }
    int group = 15, digit;
    for (; group && groups[group] < limit; group--) limit -= groups[group];
    for (digit = 16 * group + 15; digit > 16 * group && bins[digit] < limit; digit--) limit -= bins[digit];
    const u32 found = prefix | (u32)digit << shift;
    p.found->limit = limit;
    p.found->prefix = p.level ? found : 0;
    if (p.level) return;
    p.found->last = found;
    if (!p.by_mass) { p.found->least = found; return; }
    const u64 each = mass(number(found), highest, inverse);
    p.found->equals = (limit + each - 1) / each;
}

// the tokens of a row that filters keep: all above ``last``, and the first ``equals`` of those that are equal to it
struct Kept { u32 last; u64 equals, each; double highest, inverse, least_mass; };
__device__ __forceinline__ u64 kept_mass(const Kept& kept, float x, u64& equal) {
    const u32 key = key_of(x);
    if (key < kept.last) return 0;
    const u64 found = mass(x, kept.highest, kept.inverse);
    if ((double)found < kept.least_mass) return 0;
    if (key > kept.last) return found;
    equal++;
    return 0;
}
// how far up to a part: its mass and what is equal in it are added, unless that goes beyond the limit
__device__ __forceinline__ bool passes(const Kept& kept, u64 sum, u64 equal, u64 limit, u64& before, u64& used) {
    const u64 room = kept.equals - used, taken = equal < room ? equal : room, after = before + sum + taken * kept.each;
    if (after > limit) return false;
    before = after; used += taken;
    return true;
}
__device__ __forceinline__ void sum_up(u64* sums, u64* counts) {
    for (int d = THREADS / 2; d; d /= 2) {
        __syncthreads();
        if (THREAD < d) { sums[THREAD] += sums[THREAD + d]; counts[THREAD] += counts[THREAD + d]; }
    }
    __syncthreads();
}
extern "C" __global__ void BOUNDS(THREADS, 4) drawn(Draw p) {
    __shared__ u64 sums[THREADS], counts[THREADS], before, used, limit;
    __shared__ int chosen;
    if (!finite(p)) return;
    Kept kept = {p.found->last, p.found->equals, 0, highest_of(p), p.choice->inverse,
        p.choice->min_p * (double)(1ull << 42)};
    if (kept.last) kept.each = mass(number(kept.last), kept.highest, kept.inverse);
    const int size = (p.vocabulary + p.blocks - 1) / p.blocks, from = blockIdx.x * size;
    u64 sum = 0, equal = 0;
    for (int i = from + THREAD; i < min(from + size, p.vocabulary); i += THREADS)
        sum += kept_mass(kept, p.logits[i], equal);
    sums[THREAD] = sum; counts[THREAD] = equal;
    sum_up(sums, counts);
    if (THREAD == 0) { p.found->sums[blockIdx.x] = sums[0]; p.found->counts[blockIdx.x] = counts[0]; }
    if (!is_last(&p.found->counter, p.blocks)) return;
    const bool there = THREAD < p.blocks;
    const u64 own = there ? ((volatile u64*)p.found->sums)[THREAD] : 0;
    const u64 alike = there ? ((volatile u64*)p.found->counts)[THREAD] : 0;
    sums[THREAD] = own; counts[THREAD] = alike;
    sum_up(sums, counts);
    if (THREAD == 0) {
        const u64 some = counts[0] < kept.equals ? counts[0] : kept.equals;
        limit = __umul64hi(p.choice->random[p.choice->step], sums[0] + some * kept.each);
        before = used = 0;
    }
    __syncthreads();
    sums[THREAD] = own; counts[THREAD] = alike;
    __syncthreads();
    if (THREAD == 0)
        for (chosen = 0; passes(kept, sums[chosen], counts[chosen], limit, before, used);) chosen++;
    __syncthreads();
    const int begin = chosen * size, end = min(begin + size, p.vocabulary), each = (size + THREADS - 1) / THREADS;
    const int mine = begin + THREAD * each;
    sum = equal = 0;
    for (int i = mine; i < min(mine + each, end); i++) sum += kept_mass(kept, p.logits[i], equal);
    sums[THREAD] = sum; counts[THREAD] = equal;
    __syncthreads();
    if (THREAD) return;
    int t = 0;
    while (passes(kept, sums[t], counts[t], limit, before, used)) t++;
    for (int i = begin + t * each;; i++) {
        equal = 0;
        sum = kept_mass(kept, p.logits[i], equal);
        if (passes(kept, sum, equal, limit, before, used)) continue;
        choose(p, i);
        return;
    }
}
"""
_FLOATS = r"""    if (unit >= units) return;
    const value* x = (const value*)p.codes + 32 * ((long long)row * units + unit);
    for (int i = 0; i < 32; i += 4) {
        const float4 v = read4(x + i);
        y[32 * at + i] = v.x; y[32 * at + i + 1] = v.y; y[32 * at + i + 2] = v.z; y[32 * at + i + 3] = v.w;
    }
"""
_EMBED = r"""
struct Embed { const uint4* codes; const u32* highs; const void* scales; const void* heads; float* hidden;
    const Choice* choice; const float* turns; int units; int turned; int width; int info; float scale; };
extern "C" __global__ void embed(Embed p) {
    const uint4* codes = p.codes; const u32* highs = p.highs; const void *scales = p.scales, *heads = p.heads;
    const int row = p.choice->token, step = p.choice->step, units = p.units, first = 0, last = 1;
    const int unit = blockIdx.x * 128 + THREAD;
    const long long at = unit;
    float* y = p.hidden;
    if (blockIdx.x == 0) {
        for (int i = THREAD; i < p.width; i += 128) y[p.turned + i] = p.turns[step * p.width + i];
        if (THREAD == 0) ((int*)y)[p.info] = p.choice->start + step;
    }
$values    for (int i = 0; i < 32; i++) y[32 * at + i] *= p.scale;
}
"""
