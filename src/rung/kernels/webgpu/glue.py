"""Kernels between the products: rows of the embedding, sums with a norm, rotation and the cache."""

from __future__ import annotations

from dataclasses import dataclass

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import INFO, MOST_ROWS, POSITION, SELECTED, TABLE, TOKEN, declare
from rung.kernels.webgpu.layouts import UNIT, GpuLayout, address, reader

THREADS = 64


def embed(layout: GpuLayout, rows: int, columns: int, base: int, scale: float) -> Kernel:
    """Return the kernel that writes the scaled rows of the tokens; workgroups [units / 64, rows of activations].

    Its buffers are words, words, info and y [rows, columns].
    """
    kinds = ["vectors: array<vec4<u32>>", "words: array<u32>", "info: array<u32>", "y: array<vec4<f32>>"]
    # with an offset the sum of two products would be rounded otherwise than the decoded weight
    value = f"scale * (w[i] - {layout.offset}.0)" if layout.offset else "scale * w[i] + select(f.z, f.w, i > 3u)"
    code = f"""{declare(kinds, writes=(3,))}
{reader("read_unit", layout, columns)}
@compute @workgroup_size({THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let unit = id.x;
    if (unit >= {columns // UNIT}u) {{ return; }}
    var w: array<vec4<f32>, 8>;
    let f = read_unit({address(layout, rows, columns, base)}, info[{TOKEN}u + id.y], unit, &w);
    for (var i = 0u; i < 8u; i++) {{
        let scale = select(f.x, f.y, i > 3u);
        y[id.y * {columns // 4}u + 8u * unit + i] = ({value}) * {scale!r}f;
    }}
}}"""
    words = base + layout.sections(rows, columns).words
    return Kernel(code, (False, False, False, True), (4 * words, 4 * words, 4 * INFO, 4 * MOST_ROWS * columns))


def embed_groups(columns: int) -> int:
    """Return the workgroups of a row of ``embed``."""
    return -(-columns // UNIT // THREADS)


def add_and_norm(columns: int, gains: int, epsilon: float, gain: int, normed: bool) -> Kernel:
    """Return the kernel of the sum x + norm(added), in place of x, or of y = norm(x) where it is ``normed``; a
    workgroup for each row.

    Its buffers are gains, info, and (added, x) or (x, y). ``normed`` rows are the selected ones.
    """
    kinds = ["gains: array<vec4<f32>>", "info: array<u32>", "x: array<vec4<f32>>", "y: array<vec4<f32>>"]
    source = f"info[{SELECTED}u + id.x]" if normed else "id.x"
    code = f"""{declare(kinds, writes=(3,))}
var<workgroup> partial: array<f32, {THREADS}>;
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    let first = {source} * {columns // 4}u;
    let to = id.x * {columns // 4}u;
    var sum = 0.0;
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{ sum += dot(x[first + i], x[first + i]); }}
    partial[thread] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var t = 0u; t < {THREADS}u; t++) {{ sum += partial[t]; }}
    let scale = inverseSqrt(sum / {columns}.0 + {epsilon!r}f);
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{
        y[to + i] {"=" if normed else "+="} x[first + i] * scale * gains[{gain // 4}u + i];
    }}
}}"""
    size = 4 * MOST_ROWS * columns
    return Kernel(code, (False, False, False, True), (4 * gains, 4 * INFO, size, size), 4 * THREADS)


@dataclass(frozen=True)
class Heads:
    """Heads of a layer, and where their keys and values lie in its buffer.

    A block has ``block`` positions, in float16 where there are ``halves``. The words of a block, from its keys to its
    values, of a head and of a position; ``words`` of the whole buffer and ``tables`` of the block tables.
    """

    heads: int
    kv_heads: int
    size: int
    block: int
    halves: bool
    block_words: int
    values_words: int
    head_words: int
    row_words: int
    words: int
    tables: int

    @property
    def all(self) -> int:
        """Return how many heads q, k and v have together."""
        return self.heads + 2 * self.kv_heads


def rope_and_store(
    heads: Heads, dims: int, interleaved: bool, gains: int, q_gain: int, k_gain: int, epsilon: float
) -> Kernel:
    """Return the kernel that norms and rotates q in place, and k on its way to the cache, to which v goes as it is; a
    workgroup for each head of q, k and v, and each row.

    Its buffers are gains, info, tables, turns [rows, (cos, sin), dims / 2], qkv and the cache.
    """
    kinds = [
        "gains: array<f32>", "info: array<u32>", "tables: array<u32>", "turns: array<f32>",
        "qkv: array<f32>", "cache: array<u32>",
    ]  # fmt: skip
    size, half = heads.size, dims // 2
    wide = (heads.heads + 2 * heads.kv_heads) * size
    first, second = ("2u * i", "2u * i + 1u") if interleaved else ("i", f"i + {half}u")
    keys_end = heads.heads + heads.kv_heads
    norms = [f"if (head < {heads.heads}u) {{ gain = {q_gain}; }}" if q_gain >= 0 else "",
             f"if (head >= {heads.heads}u) {{ gain = {k_gain}; }}" if k_gain >= 0 else ""]  # fmt: skip
    stored = (
        "pack2x16float(vec2<f32>(values[2u * i], values[2u * i + 1u]))" if heads.halves else "bitcast<u32>(values[i])"
    )
    code = f"""{declare(kinds, writes=(4, 5))}
var<workgroup> values: array<f32, {size}>;
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    let head = id.x;
    let at = id.y * {wide}u + head * {size}u;
    for (var i = thread; i < {size}u; i += {THREADS}u) {{ values[i] = qkv[at + i]; }}
    workgroupBarrier();
    if (head < {keys_end}u) {{
        var gain = -1;
        {norms[0]}
        {norms[1]}
        if (gain >= 0) {{
            var sum = 0.0;
            for (var i = 0u; i < {size}u; i++) {{ sum += values[i] * values[i]; }}
            let scale = inverseSqrt(sum / {size}.0 + {epsilon!r}f);
            workgroupBarrier();
            for (var i = thread; i < {size}u; i += {THREADS}u) {{ values[i] *= scale * gains[u32(gain) + i]; }}
            workgroupBarrier();
        }}
        for (var i = thread; i < {half}u; i += {THREADS}u) {{
            let cosine = turns[id.y * {dims}u + i];
            let sine = turns[id.y * {dims}u + {half}u + i];
            let left = values[{first}];
            let right = values[{second}];
            values[{first}] = left * cosine - right * sine;
            values[{second}] = right * cosine + left * sine;
        }}
        workgroupBarrier();
    }}
    if (head < {heads.heads}u) {{
        for (var i = thread; i < {size}u; i += {THREADS}u) {{ qkv[at + i] = values[i]; }}
        return;
    }}
    let position = info[{POSITION}u + id.y];
    var to = tables[info[{TABLE}u + id.y] + position / {heads.block}u] * {heads.block_words}u;
    to += position % {heads.block}u * {heads.row_words}u;
    to += select(0u, {heads.values_words}u, head >= {keys_end}u);
    to += (head - {heads.heads}u) % {heads.kv_heads}u * {heads.head_words}u;
    for (var i = thread; i < {heads.row_words}u; i += {THREADS}u) {{ cache[to + i] = {stored}; }}
}}"""
    sizes = (4 * gains, 4 * INFO, 4 * heads.tables, 4 * MOST_ROWS * dims, 4 * MOST_ROWS * wide, 4 * heads.words)
    return Kernel(code, (False, False, False, False, True, True), sizes, 4 * size)


def attend(heads: Heads, scale: float, window: int | None, softcap: float | None) -> Kernel:
    """Return the kernel in which a query sees the positions up to its own; a workgroup for each head and row.

    64 keys at a time with a running maximum. Its buffers are info, tables, qkv, the cache (twice) and y.
    """
    kinds = [
        "info: array<u32>", "tables: array<u32>", "qkv: array<vec4<f32>>", "vectors: array<vec4<u32>>",
        "words: array<u32>", "y: array<f32>",
    ]  # fmt: skip
    size, wide = heads.size, (heads.heads + 2 * heads.kv_heads) * heads.size
    own = -(-size // THREADS)
    if heads.halves:
        score = """let eight = vectors[at + i];
            score += dot(query[2u * i], vec4<f32>(unpack2x16float(eight.x), unpack2x16float(eight.y)));
            score += dot(query[2u * i + 1u], vec4<f32>(unpack2x16float(eight.z), unpack2x16float(eight.w)));"""
        value = "unpack2x16float(words[base + dim / 2u])[dim & 1u]"
    else:
        score = "score += dot(query[i], bitcast<vec4<f32>>(vectors[at + i]));"
        value = "bitcast<f32>(words[base + dim])"
    capped = f"score = tanh(clamp(score / {softcap!r}f, -15.0, 15.0)) * {softcap!r}f;" if softcap is not None else ""
    seen = f"first = select(0u, position + 1u - {window}u, position + 1u > {window}u);" if window is not None else ""
    code = f"""{declare(kinds, writes=(5,))}
var<workgroup> query: array<vec4<f32>, {size // 4}>;
var<workgroup> scores: array<f32, {THREADS}>;
var<workgroup> starts: array<u32, {THREADS}>;
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    let position = info[{POSITION}u + id.y];
    let table = info[{TABLE}u + id.y];
    let own = id.x / {heads.heads // heads.kv_heads}u * {heads.head_words}u;
    for (var i = thread; i < {size // 4}u; i += {THREADS}u) {{
        query[i] = qkv[id.y * {wide // 4}u + id.x * {size // 4}u + i];
    }}
    var first = 0u;
    {seen}
    var most = -1e30;
    var total = 0.0;
    var sums: array<f32, {own}>;
    workgroupBarrier();
    for (var start = first; start <= position; start += {THREADS}u) {{
        let key = start + thread;
        var score = -1e30;
        if (key <= position) {{
            let block = tables[table + key / {heads.block}u] * {heads.block_words}u;
            let begin = block + own + key % {heads.block}u * {heads.row_words}u;
            starts[thread] = begin + {heads.values_words}u;
            let at = begin / 4u;
            score = 0.0;
            for (var i = 0u; i < {heads.row_words // 4}u; i++) {{
                {score}
            }}
            score *= {scale!r}f;
            {capped}
        }}
        scores[thread] = score;
        workgroupBarrier();
        var largest = most;
        for (var i = 0u; i < {THREADS}u; i++) {{ largest = max(largest, scores[i]); }}
        workgroupBarrier();
        scores[thread] = select(0.0, exp(score - largest), key <= position);
        workgroupBarrier();
        let shrink = exp(most - largest);
        most = largest;
        total *= shrink;
        for (var d = 0u; d < {own}u; d++) {{ sums[d] *= shrink; }}
        let count = min({THREADS}u, position + 1u - start);
        for (var i = 0u; i < count; i++) {{
            total += scores[i];
            let base = starts[i];
            for (var d = 0u; d < {own}u; d++) {{
                let dim = d * {THREADS}u + thread;
                if (dim < {size}u) {{ sums[d] += scores[i] * {value}; }}
            }}
        }}
        workgroupBarrier();
    }}
    for (var d = 0u; d < {own}u; d++) {{
        let dim = d * {THREADS}u + thread;
        if (dim < {size}u) {{ y[id.y * {heads.heads * size}u + id.x * {size}u + dim] = sums[d] / total; }}
    }}
}}"""
    out = 4 * MOST_ROWS * heads.heads * size
    sizes = (4 * INFO, 4 * heads.tables, 4 * MOST_ROWS * wide, 4 * heads.words, 4 * heads.words, out)
    return Kernel(code, (False, False, False, False, False, True), sizes, 4 * size + 8 * THREADS)
