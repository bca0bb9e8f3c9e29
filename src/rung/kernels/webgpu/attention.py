"""Kernels of attention: rotation and the cache of keys and values, and what a query sees.

Where each row is of another sequence, as when tokens are generated, one kernel does both: what it writes no other
workgroup of it reads. Rows of one sequence see each other, and take two kernels.

A cache of ``codes`` has 32 values as signed bytes with a scale in bfloat16: what float16 rounds to a subnormal number
some GPUs take for zero. The scale is rounded up, so that no code is beyond 127. Of a head in a block the bytes of all
positions come first, then the scales of all positions (``quantized`` in NumPy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import (
    AHEAD,
    INFO,
    MOST_PARTS,
    MOST_ROWS,
    ONE_PART,
    PART,
    POSITION,
    TABLE,
    declare,
    part_bytes,
)
from rung.kernels.webgpu.int8.units import VECTORS, lanes, making_bytes, quantize, units_bytes
from rung.kernels.webgpu.layouts import UNIT

THREADS = 64


@dataclass(frozen=True)
class Heads:
    """Heads of a layer, and where their keys and values lie in its buffer.

    A block has ``block`` positions, in float16 where there are ``halves``, in bytes where there are ``codes``. The
    words of a block, from its keys to its values, of a head and of a position; ``words`` of the whole buffer and
    ``tables`` of the block tables.
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
    codes: bool = False

    @property
    def all(self) -> int:
        """Return how many heads q, k and v have together."""
        return self.heads + 2 * self.kv_heads

    @property
    def wide(self) -> int:
        """Return the numbers of q, k and v of a row."""
        return self.all * self.size

    @property
    def units(self) -> int:
        """Return how many scales a head of a position has."""
        return self.size // UNIT

    def scale(self, head: str, position: str, unit: str) -> tuple[str, str]:
        """Return, as WGSL, the word of a scale of a head that begins at a word, and by how much it is shifted there."""
        number = f"({position} % {self.block}u * {self.units}u + {unit})"
        return f"{head} + {self.block * self.row_words}u + {number} / 2u", f"16u * ({number} & 1u)"

    def at(self, position: str) -> str:
        """Return, as WGSL, the word at which a position begins in its block's first head."""
        block = f"tables[info[{TABLE}u + id.y] + {position} / {self.block}u] * {self.block_words}u"
        return f"{block} + {position} % {self.block}u * {self.row_words}u"


@dataclass(frozen=True)
class Turn:
    """A rotation of ``dims`` numbers of each head, and the norms of q and k before it: where their gains lie in
    ``gains`` float32 (-1: none)."""

    dims: int
    interleaved: bool
    gains: int
    q_gain: int
    k_gain: int
    epsilon: float

    def code(self, values: str, size: int, gain: str) -> str:
        """Return the WGSL that norms and rotates a workgroup's numbers in place, with barriers around it."""
        half = self.dims // 2
        first, second = ("2u * i", "2u * i + 1u") if self.interleaved else ("i", f"i + {half}u")
        norm = f"""if ({gain} >= 0) {{
        var sum = 0.0;
        for (var i = 0u; i < {size}u; i++) {{ sum += {values}[i] * {values}[i]; }}
        let scale = inverseSqrt(sum / {size}.0 + {self.epsilon!r}f);
        workgroupBarrier();
        for (var i = thread; i < {size}u; i += {THREADS}u) {{ {values}[i] *= scale * gains[u32({gain}) + i]; }}
        workgroupBarrier();
    }}"""
        return f"""
    workgroupBarrier();
    {norm if gain != "-1" else ""}
    for (var i = thread; i < {half}u; i += {THREADS}u) {{
        let cosine = turns[(info[{AHEAD}u] + id.y) * {self.dims}u + i];
        let sine = turns[(info[{AHEAD}u] + id.y) * {self.dims}u + {half}u + i];
        let left = {values}[{first}];
        let right = {values}[{second}];
        {values}[{first}] = left * cosine - right * sine;
        {values}[{second}] = right * cosine + left * sine;
    }}
    workgroupBarrier();
"""


_MAIN = f"""@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{"""


def rope_and_store(heads: Heads, turn: Turn) -> Kernel:
    """Return the kernel that norms and rotates q in place, and k on its way to the cache, to which v goes as it is; a
    workgroup for each head of q, k and v, and each row.

    Its buffers are gains, info, tables, turns [rows, (cos, sin), dims / 2], qkv and the cache.
    """
    kinds = [*_turning(), "qkv: array<f32>", "cache: array<u32>"]
    size, keys_end = heads.size, heads.heads + heads.kv_heads
    two = "pack2x16float(vec2<f32>(values[2u * i], values[2u * i + 1u]))"
    store = f"""for (var i = thread; i < {heads.row_words}u; i += {THREADS}u) {{
        cache[to + i] = {two if heads.halves else "bitcast<u32>(values[i])"};
    }}"""
    if heads.codes:
        kinds[-1] = "cache: array<atomic<u32>>"  # two rows may have their scales in one word
        store = _store_codes(heads)
    code = f"""{declare(kinds, writes=(4, 5))}
var<workgroup> values: array<f32, {size}>;
{_codes_memory(heads, 1) if heads.codes else ""}
{_MAIN}
    let head = id.x;
    let at = id.y * {heads.wide}u + head * {size}u;
    for (var i = thread; i < {size}u; i += {THREADS}u) {{ values[i] = qkv[at + i]; }}
    let gain = select({turn.k_gain}, {turn.q_gain}, head < {heads.heads}u);
    if (head < {keys_end}u) {{
        {turn.code("values", size, "gain")}
    }}
    workgroupBarrier();
    if (head < {heads.heads}u) {{
        for (var i = thread; i < {size}u; i += {THREADS}u) {{ qkv[at + i] = values[i]; }}
        return;
    }}
    let position = info[{POSITION}u + id.y];
    var to = {heads.at("position")} + (head - {heads.heads}u) % {heads.kv_heads}u * {heads.head_words}u;
    to += select(0u, {heads.values_words}u, head >= {keys_end}u);
    {store}
}}"""
    sizes = (*_turning_bytes(heads, turn), 4 * MOST_ROWS * heads.wide, 4 * heads.words)
    return Kernel(code, (False, False, False, False, True, True), sizes, 4 * size + _codes_bytes(heads, 1))


def _turning() -> list[str]:
    return ["gains: array<f32>", "info: array<u32>", "tables: array<u32>", "turns: array<f32>"]


def _turning_bytes(heads: Heads, turn: Turn) -> tuple[int, int, int, int]:
    return 4 * turn.gains, 4 * INFO, 4 * heads.tables, 4 * MOST_ROWS * turn.dims


@dataclass(frozen=True)
class Sight:
    """The sight of a query: scores are times ``scale`` and have a ``softcap``; the last ``window`` positions."""

    scale: float
    window: int | None
    softcap: float | None

    def code(self) -> tuple[str, str]:
        """Return the WGSL of the score's scale and cap, and of the first position that is seen."""
        cap = self.softcap
        capped = f" score = tanh(clamp(score / {cap!r}f, -15.0, 15.0)) * {cap!r}f;" if cap is not None else ""
        first = f"select(0u, position + 1u - {self.window}u, position + 1u > {self.window}u)"
        return f"score *= {self.scale!r}f;{capped}", first if self.window is not None else "0u"

    def parts(self) -> str:
        """Return the WGSL of how many parts ``begin`` to ``end`` has, each of ``length`` positions: by a row's own."""
        return f"""let begin = {self.code()[1]};
    let parts = select(1u, min({MOST_PARTS}u, (end - begin + {PART - 1}u) / {PART}u), end - begin > {ONE_PART}u);
    let length = ((end - begin + parts - 1u) / parts + {THREADS - 1}u) / {THREADS}u * {THREADS}u;"""


def attend(heads: Heads, sight: Sight, turn: Turn | None, makes: bool = False, parted: bool = False) -> Kernel:
    """Return the kernel in which a query sees the positions up to its own; a workgroup for each head and row.

    64 keys at a time with a running maximum. Its buffers are gains, info, tables, turns, qkv, the cache and y. With
    ``turn`` it does what ``rope_and_store`` does, too, for rows that are of different sequences: the own key and value
    are in the memory of the workgroup, rounded as those of the cache, and the first head of those that share them
    writes them. ``makes``: it writes the units of y too, into one more buffer; a head has whole ones. ``parted``: a
    head has ``MOST_PARTS`` workgroups, whose sums go to ``left`` in place of y; ``join_parts`` makes y.
    """
    kinds = [*_turning(), "qkv: array<f32>", "cache: array<vec4<u32>>", f"{'left' if parted else 'y'}: array<f32>"]
    makes = makes and not parted
    kinds += ["quantized: array<vec4<u32>>"] if makes else []
    size, shared = heads.size, heads.heads // heads.kv_heads
    mine = -(-size // THREADS)
    scaled, visible = sight.code()
    code = f"""{declare(kinds, writes=(5, 6, 7))}
{_quantize(heads) if makes else ""}
var<workgroup> query: array<f32, {size}>;
var<workgroup> scores: array<f32, {THREADS}>;
var<workgroup> starts: array<u32, {THREADS}>;
{_own_memory(size) if turn else ""}
{_codes_memory(heads, 2) if turn and heads.codes else ""}
{f"var<workgroup> shares: array<f32, {THREADS * heads.units}>;" if heads.codes else ""}
{_MAIN}
    let position = info[{POSITION}u + id.y];
    let head = id.x % {heads.heads}u;
    let part = id.x / {heads.heads}u;
    let own = head / {shared}u;
    for (var i = thread; i < {size}u; i += {THREADS}u) {{ query[i] = qkv[id.y * {heads.wide}u + head * {size}u + i]; }}
    var most = -1e30;
    var total = 0.0;
    var sums: array<f32, {mine}>;
    {_own(heads, turn, scaled, shared, mine) if turn else "let end = position + 1u;"}
    workgroupBarrier();
    {_span(sight, mine) if parted else f"let stop = end; let first = {visible};"}
    for (var start = first; start < stop; start += {THREADS}u) {{
        let key = start + thread;
        var score = -1e30;
        if (key < stop) {{
            let begin = {heads.at("key")} + own * {heads.head_words}u;
            starts[thread] = begin + {heads.values_words}u;
            let at = begin / 4u;
            score = 0.0;
            {_score(heads)}
            {scaled}
        }}
        scores[thread] = score;
        workgroupBarrier();
        var largest = most;
        for (var i = 0u; i < {THREADS}u; i++) {{ largest = max(largest, scores[i]); }}
        workgroupBarrier();
        scores[thread] = select(0.0, exp(score - largest), key < stop);
        {_share(heads) if heads.codes else ""}
        workgroupBarrier();
        let shrink = exp(most - largest);
        most = largest;
        total *= shrink;
        for (var d = 0u; d < {mine}u; d++) {{ sums[d] *= shrink; }}
        let count = min({THREADS}u, stop - start);
        for (var i = 0u; i < count; i++) {{
            total += scores[i];
            for (var d = 0u; d < {mine}u; d++) {{
                let dim = d * {THREADS}u + thread;
                if (dim < {size}u) {{ sums[d] += {_value(heads)}; }}
            }}
        }}
        workgroupBarrier();
    }}
    {_leave(heads, mine) if parted else _finish(heads, mine, makes)}
}}"""
    turned = turn or Turn(2, False, 4, -1, -1, 0.0)
    sizes = (*_turning_bytes(heads, turned), 4 * MOST_ROWS * heads.wide, 4 * heads.words)
    memory = 4 * size * (3 if turn else 1) + 8 * THREADS + _codes_bytes(heads, 2 * (turn is not None))
    memory += 4 * THREADS * heads.units * heads.codes
    reaches = [*sizes, part_bytes(heads.heads, size) if parted else 4 * MOST_ROWS * heads.heads * size]
    reaches += [units_bytes(MOST_ROWS, heads.heads * size)] if makes else []
    memory += making_bytes(size // UNIT) * makes
    return Kernel(code, (False,) * 5 + (True,) * (2 + makes), tuple(reaches), memory)


def join_parts(heads: Heads, sight: Sight, apart: bool, makes: bool) -> Kernel:
    """Return the kernel that makes y, and its units where it ``makes`` them, of what parts have left; a workgroup for
    each head and row. Its buffers are left, info, y and quantized."""
    kinds = [
        "left: array<f32>",
        "info: array<u32>",
        "y: array<f32>",
        *(["quantized: array<vec4<u32>>"] if makes else []),
    ]
    size, mine, row = heads.size, -(-heads.size // THREADS), heads.size + 2
    code = f"""{declare(kinds, writes=(2, 3))}
{_quantize(heads) if makes else ""}
var<workgroup> query: array<f32, {size}>;
{_MAIN}
    let head = id.x;
    let position = info[{POSITION}u + id.y];
    let end = position{"" if apart else " + 1u"};
    {sight.parts()}
    let from_ = (id.y * {heads.heads}u + head) * {MOST_PARTS * row}u;
    var most = -1e30;
    for (var n = 0u; n < parts; n++) {{ most = max(most, left[from_ + n * {row}u + {size}u]); }}
    var total = 0.0;
    var sums: array<f32, {mine}>;
    for (var n = 0u; n < parts; n++) {{
        let at = from_ + n * {row}u;
        let share = exp(left[at + {size}u] - most);
        total += share * left[at + {size + 1}u];
        for (var d = 0u; d < {mine}u; d++) {{
            let dim = d * {THREADS}u + thread;
            if (dim < {size}u) {{ sums[d] += share * left[at + dim]; }}
        }}
    }}
    {_finish(heads, mine, makes)}
}}"""
    reaches = [part_bytes(heads.heads, size), 4 * INFO, 4 * MOST_ROWS * heads.heads * size]
    reaches += [units_bytes(MOST_ROWS, heads.heads * size)] if makes else []
    memory = 4 * size + making_bytes(size // UNIT) * makes
    return Kernel(code, (False, False, True, True)[: len(kinds)], tuple(reaches), memory)


def _span(sight: Sight, mine: int) -> str:
    """Return the WGSL of a part's positions; a row's own is in the first one."""
    return f"""{sight.parts()}
    if (part >= parts) {{ return; }}
    let first = begin + part * length;
    let stop = min(end, first + length);
    if (part > 0u) {{
        most = -1e30;
        total = 0.0;
        for (var d = 0u; d < {mine}u; d++) {{ sums[d] = 0.0; }}
    }}"""


def _leave(heads: Heads, mine: int) -> str:
    """Return the WGSL that leaves a part's sums for ``join_parts``."""
    size = heads.size
    return f"""let to = ((id.y * {heads.heads}u + head) * {MOST_PARTS}u + part) * {size + 2}u;
    for (var d = 0u; d < {mine}u; d++) {{
        let dim = d * {THREADS}u + thread;
        if (dim < {size}u) {{ left[to + dim] = sums[d]; }}
    }}
    if (thread == 0u) {{
        left[to + {size}u] = most;
        left[to + {size + 1}u] = total;
    }}"""


def _finish(heads: Heads, mine: int, makes: bool) -> str:
    """Return the WGSL that writes y of a head, and its units."""
    size = heads.size
    return f"""for (var d = 0u; d < {mine}u; d++) {{
        let dim = d * {THREADS}u + thread;
        if (dim < {size}u) {{
            let value = sums[d] / total;
            y[id.y * {heads.heads * size}u + head * {size}u + dim] = value;
            {"query[dim] = value;" if makes else ""}
        }}
    }}
    {_write_units(heads) if makes else ""}"""


def _quantize(heads: Heads) -> str:
    values = "vec4<f32>(query[at], query[at + 1u], query[at + 2u], query[at + 3u])"
    return quantize(values, units=heads.size // UNIT, threads=THREADS)


def _write_units(heads: Heads) -> str:
    """Return the WGSL that makes the units of what a head gives, which lies where its query lay."""
    units = heads.size // UNIT
    target = f"((id.y * {heads.heads}u + head) * {units}u + unit) * {VECTORS}u"
    return f"""workgroupBarrier();
    let unit = thread / {lanes(units, THREADS)}u;
    quantize({UNIT}u * unit, 0u, {target}, thread, unit < {units}u);"""


def _score(heads: Heads) -> str:
    """Return the WGSL that adds the products of a query with the key at vector ``at`` to its score."""

    def four(at: str) -> str:
        return f"vec4<f32>(query[{at}], query[{at} + 1u], query[{at} + 2u], query[{at} + 3u])"

    if heads.codes:
        word, shift = heads.scale("head_at", "key", "u")
        dots = " + ".join(
            f"dot({four(f'{UNIT}u * u + {16 * half + 4 * number}u')}, vec4<f32>(unpack4xI8({name}.{part})))"
            for half, name in enumerate(("low", "high"))
            for number, part in enumerate("xyzw")
        )
        return f"""let head_at = begin - key % {heads.block}u * {heads.row_words}u;
            for (var u = 0u; u < {heads.units}u; u++) {{
                let low = cache[at + 2u * u];
                let high = cache[at + 2u * u + 1u];
                let scale_at = {word};
                let scale = bitcast<f32>((cache[scale_at / 4u][scale_at & 3u] >> ({shift})) << 16u);
                score += scale * ({dots});
            }}"""
    step = f"score += dot({four('4u * i')}, bitcast<vec4<f32>>(cache[at + i]));"
    if heads.halves:
        low, high = ("vec4<f32>(unpack2x16float(k.{}), unpack2x16float(k.{}))".format(*pair) for pair in ("xy", "zw"))
        step = f"let k = cache[at + i]; score += dot({four('8u * i')}, {low}) + dot({four('8u * i + 4u')}, {high});"
    return f"for (var i = 0u; i < {heads.row_words // 4}u; i++) {{ {step} }}"


def _share(heads: Heads) -> str:
    """Return the WGSL of the weight of a thread's key times each scale of its value."""
    word, shift = heads.scale(f"starts[thread] - key % {heads.block}u * {heads.row_words}u", "key", "u")
    return f"""if (key < stop) {{
            for (var u = 0u; u < {heads.units}u; u++) {{
                let scale_at = {word};
                let scale = bitcast<f32>((cache[scale_at / 4u][scale_at & 3u] >> ({shift})) << 16u);
                shares[thread * {heads.units}u + u] = scores[thread] * scale;
            }}
        }}"""


def _value(heads: Heads) -> str:
    """Return the WGSL of the weighted number ``dim`` of the value of key ``i``."""
    if heads.codes:
        code = "extractBits(bitcast<i32>(cache[(starts[i] + dim / 4u) / 4u][(dim / 4u) & 3u]), 8u * (dim & 3u), 8u)"
        return f"shares[i * {heads.units}u + dim / {UNIT}u] * f32({code})"
    if not heads.halves:
        return "scores[i] * bitcast<f32>(cache[(starts[i] + dim) / 4u][dim & 3u])"
    return "scores[i] * unpack2x16float(cache[(starts[i] + dim / 2u) / 4u][(dim / 2u) & 3u])[dim & 1u]"


def _codes_bytes(heads: Heads, parts: int) -> int:
    """Return the bytes of ``_codes_memory``."""
    return parts * (heads.size + 4 * heads.units) if heads.codes else 0


def _codes_memory(heads: Heads, parts: int) -> str:
    """Return the WGSL of the memory of codes and scales of a key, or of a key and its value (``parts``)."""
    return f"""var<workgroup> codes: array<u32, {parts * heads.size // 4}>;
var<workgroup> scales: array<u32, {parts * heads.units}>;"""


def _quantized(heads: Heads, values: str, part: int) -> str:
    """Return the WGSL in which a workgroup rounds a key or a value to codes, of which it leaves what they stand for."""
    first = part * heads.units
    return f"""if (thread / {heads.units}u == {part}u) {{
        let unit = thread % {heads.units}u;
        var largest = 0u;
        for (var i = 0u; i < {UNIT}u; i++) {{
            largest = max(largest, bitcast<u32>({values}[{UNIT}u * unit + i]) & 0x7fffffffu);
        }}
        let size = bitcast<f32>(largest) / 127.0;
        let bits = select((bitcast<u32>(size) + 0xffffu) >> 16u, 0x7fc0u, largest >= 0x7f800000u);
        let scale = bitcast<f32>(bits << 16u);
        let inverse = select(0.0, 1.0 / scale, size > 1e-30);
        for (var i = 0u; i < {UNIT // 4}u; i++) {{
            var word = 0u;
            for (var k = 0u; k < 4u; k++) {{
                let at = {UNIT}u * unit + 4u * i + k;
                let y = {values}[at] * inverse;
                let code = clamp(i32(y + select(-0.5, 0.5, y >= 0.0)), -127, 127);
                word |= (u32(code) & 255u) << (8u * k);
                {values}[at] = f32(code) * scale;
            }}
            codes[{part * heads.size // 4}u + {UNIT // 4}u * unit + i] = word;
        }}
        scales[{first}u + unit] = bits;
    }}"""


def _store_codes(heads: Heads) -> str:
    """Return the WGSL that writes the codes and scales of ``values`` to the word ``to`` of a head of the cache."""
    word, shift = heads.scale(f"to - position % {heads.block}u * {heads.row_words}u", "position", "u")
    return f"""{_quantized(heads, "values", 0)}
    workgroupBarrier();
    for (var i = thread; i < {heads.row_words}u; i += {THREADS}u) {{ atomicStore(&cache[to + i], codes[i]); }}
    for (var u = thread; u < {heads.units}u; u += {THREADS}u) {{
        atomicAnd(&cache[{word}], 0xffff0000u >> ({shift}));
        atomicOr(&cache[{word}], scales[u] << ({shift}));
    }}"""


def quantized(values: Floats) -> Floats:
    """Return float32 [..., multiples of 32] as a cache of codes has them."""
    units = values.reshape(-1, UNIT)
    sizes = np.abs(units).max(axis=1, keepdims=True) / np.float32(127)
    scales = ((sizes.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    y = np.divide(units, scales, out=np.zeros_like(units), where=sizes > 1e-30)
    codes = np.clip(np.trunc(y + np.copysign(np.float32(0.5), y)), -127, 127)
    found: Floats = (codes * scales).reshape(values.shape)
    return found


def _own_memory(size: int) -> str:
    return f"var<workgroup> key_: array<f32, {size}>;\nvar<workgroup> value_: array<f32, {size}>;"


def _own(heads: Heads, turn: Turn, scaled: str, shared: int, mine: int) -> str:
    """Return the WGSL that begins with a row's own key and value, and writes them into the cache."""
    size, keys = heads.size, f"id.y * {heads.wide}u + {heads.heads * heads.size}u + own * {heads.size}u"
    rounded = "".join(
        f"{each}[i] = unpack2x16float(pack2x16float(vec2<f32>({each}[i], 0.0))).x; " for each in ("key_", "value_")
    )
    rounded = f"for (var i = thread; i < {size}u; i += {THREADS}u) {{ {rounded}}}" if heads.halves else ""
    if heads.codes:
        rounded = f"{_quantized(heads, 'key_', 0)}\n    {_quantized(heads, 'value_', 1)}"
    if heads.halves:
        words = [f"pack2x16float(vec2<f32>(@[8u * i + {at}u], @[8u * i + {at + 1}u]))" for at in range(0, 8, 2)]
    elif heads.codes:
        words = [f"codes[@ + 4u * i + {at}u]" for at in range(4)]
    else:
        words = [f"bitcast<u32>(@[4u * i + {at}u])" for at in range(4)]
    stored = f"vec4<u32>({', '.join(words)})"
    key, value = ("0u", f"{size // 4}u") if heads.codes else ("key_", "value_")
    return f"""for (var i = thread; i < {size}u; i += {THREADS}u) {{
        key_[i] = qkv[{keys} + i];
        value_[i] = qkv[{keys} + {heads.kv_heads * size}u + i];
    }}
    {turn.code("query", size, str(turn.q_gain))}
    {turn.code("key_", size, str(turn.k_gain))}
    {rounded}
    workgroupBarrier();
    let end = position;
    var score = 0.0;
    for (var i = 0u; i < {size}u; i++) {{ score += query[i] * key_[i]; }}
    {scaled}
    most = score;
    total = 1.0;
    for (var d = 0u; d < {mine}u; d++) {{
        let dim = d * {THREADS}u + thread;
        if (dim < {size}u) {{ sums[d] = value_[dim]; }}
    }}
    if (part == 0u && head % {shared}u == 0u) {{
        let head_at = {heads.at("position")} + own * {heads.head_words}u;
        let to = head_at / 4u;
        for (var i = thread; i < {heads.row_words // 4}u; i += {THREADS}u) {{
            cache[to + i] = {stored.replace("@", key)};
            cache[to + {heads.values_words // 4}u + i] = {stored.replace("@", value)};
        }}
        {_own_scales(heads) if heads.codes else ""}
    }}"""


def _own_scales(heads: Heads) -> str:
    """Return the WGSL in which a thread writes the scales of a key, and one those of its value, next to those of other
    positions in the same words."""
    first = f"head_at + thread * {heads.values_words}u - position % {heads.block}u * {heads.row_words}u"
    word, shift = heads.scale(first, "position", "u")
    return f"""if (thread < 2u) {{
            for (var u = 0u; u < {heads.units}u; u++) {{
                let scale_at = {word};
                let shift = {shift};
                var four = cache[scale_at / 4u];
                let kept = four[scale_at & 3u] & (0xffff0000u >> shift);
                four[scale_at & 3u] = kept | (scales[thread * {heads.units}u + u] << shift);
                cache[scale_at / 4u] = four;
            }}
        }}"""
