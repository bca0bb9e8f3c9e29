"""Kernels of attention: rotation and the cache of keys and values, and what a query sees.

Where each row is of another sequence, as when tokens are generated, one kernel does both: what it writes no other
workgroup of it reads. Rows of one sequence see each other, and take two kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from rung.kernels.webgpu.int8.units import VECTORS, quantize, units_bytes
from rung.kernels.webgpu.layouts import UNIT

THREADS = 64


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

    @property
    def wide(self) -> int:
        """Return the numbers of q, k and v of a row."""
        return self.all * self.size

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
    code = f"""{declare(kinds, writes=(4, 5))}
var<workgroup> values: array<f32, {size}>;
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
    for (var i = thread; i < {heads.row_words}u; i += {THREADS}u) {{
        cache[to + i] = {two if heads.halves else "bitcast<u32>(values[i])"};
    }}
}}"""
    sizes = (*_turning_bytes(heads, turn), 4 * MOST_ROWS * heads.wide, 4 * heads.words)
    return Kernel(code, (False, False, False, False, True, True), sizes, 4 * size)


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
    kinds += ["made: array<vec4<u32>>"] if makes else []
    size, shared = heads.size, heads.heads // heads.kv_heads
    mine = -(-size // THREADS)
    scaled, seen = sight.code()
    code = f"""{declare(kinds, writes=(5, 6, 7))}
{_quantize() if makes else ""}
var<workgroup> query: array<f32, {size}>;
var<workgroup> scores: array<f32, {THREADS}>;
var<workgroup> starts: array<u32, {THREADS}>;
{_own_memory(size) if turn else ""}
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
    {_span(sight, mine) if parted else f"let stop = end; let first = {seen};"}
    for (var start = first; start < stop; start += {THREADS}u) {{
        let key = start + thread;
        var score = -1e30;
        if (key < stop) {{
            let begin = {heads.at("key")} + own * {heads.head_words}u;
            starts[thread] = begin + {heads.values_words}u;
            let at = begin / 4u;
            score = 0.0;
            for (var i = 0u; i < {heads.row_words // 4}u; i++) {{ {_score(heads.halves)} }}
            {scaled}
        }}
        scores[thread] = score;
        workgroupBarrier();
        var largest = most;
        for (var i = 0u; i < {THREADS}u; i++) {{ largest = max(largest, scores[i]); }}
        workgroupBarrier();
        scores[thread] = select(0.0, exp(score - largest), key < stop);
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
                if (dim < {size}u) {{ sums[d] += scores[i] * {_value(heads.halves)}; }}
            }}
        }}
        workgroupBarrier();
    }}
    {_leave(heads, mine) if parted else _finish(heads, mine, makes)}
}}"""
    given = turn or Turn(2, False, 4, -1, -1, 0.0)
    sizes = (*_turning_bytes(heads, given), 4 * MOST_ROWS * heads.wide, 4 * heads.words)
    memory = 4 * size * (3 if turn else 1) + 8 * THREADS
    reaches = [*sizes, part_bytes(heads.heads, size) if parted else 4 * MOST_ROWS * heads.heads * size]
    reaches += [units_bytes(MOST_ROWS, heads.heads * size)] if makes else []
    return Kernel(code, (False,) * 5 + (True,) * (2 + makes), tuple(reaches), memory)


def join_parts(heads: Heads, sight: Sight, apart: bool, makes: bool) -> Kernel:
    """Return the kernel that makes y, and its units where it ``makes`` them, of what parts have left; a workgroup for
    each head and row. Its buffers are left, info, y and made."""
    kinds = ["left: array<f32>", "info: array<u32>", "y: array<f32>", *(["made: array<vec4<u32>>"] if makes else [])]
    size, mine, row = heads.size, -(-heads.size // THREADS), heads.size + 2
    code = f"""{declare(kinds, writes=(2, 3))}
{_quantize() if makes else ""}
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
    return Kernel(code, (False, False, True, True)[: len(kinds)], tuple(reaches), 4 * size)


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
    {_made(heads) if makes else ""}"""


def _quantize() -> str:
    return quantize("vec4<f32>(query[at], query[at + 1u], query[at + 2u], query[at + 3u])")


def _made(heads: Heads) -> str:
    """Return the WGSL that makes the units of what a head gives, which lies where its query lay."""
    units = heads.size // UNIT
    place = f"((id.y * {heads.heads}u + head) * {units}u + thread) * {VECTORS}u"
    return f"""workgroupBarrier();
    if (thread < {units}u) {{ quantize({UNIT}u * thread, 0u, {place}); }}"""


def _score(halves: bool) -> str:
    def four(at: str) -> str:
        return f"vec4<f32>(query[{at}], query[{at} + 1u], query[{at} + 2u], query[{at} + 3u])"

    if not halves:
        return f"score += dot({four('4u * i')}, bitcast<vec4<f32>>(cache[at + i]));"
    low, high = ("vec4<f32>(unpack2x16float(k.{}), unpack2x16float(k.{}))".format(*pair) for pair in ("xy", "zw"))
    return f"let k = cache[at + i]; score += dot({four('8u * i')}, {low}) + dot({four('8u * i + 4u')}, {high});"


def _value(halves: bool) -> str:
    if not halves:
        return "bitcast<f32>(cache[(starts[i] + dim) / 4u][dim & 3u])"
    return "unpack2x16float(cache[(starts[i] + dim / 2u) / 4u][(dim / 2u) & 3u])[dim & 1u]"


def _own_memory(size: int) -> str:
    return f"var<workgroup> key_: array<f32, {size}>;\nvar<workgroup> value_: array<f32, {size}>;"


def _own(heads: Heads, turn: Turn, scaled: str, shared: int, mine: int) -> str:
    """Return the WGSL that begins with a row's own key and value, and writes them into the cache."""
    size, keys = heads.size, f"id.y * {heads.wide}u + {heads.heads * heads.size}u + own * {heads.size}u"
    rounded = "key_[i] = unpack2x16float(pack2x16float(vec2<f32>(key_[i], 0.0))).x; " if heads.halves else ""
    rounded += "value_[i] = unpack2x16float(pack2x16float(vec2<f32>(value_[i], 0.0))).x;" if heads.halves else ""
    if heads.halves:
        words = [f"pack2x16float(vec2<f32>(@[8u * i + {at}u], @[8u * i + {at + 1}u]))" for at in range(0, 8, 2)]
    else:
        words = [f"bitcast<u32>(@[4u * i + {at}u])" for at in range(4)]
    stored = f"vec4<u32>({', '.join(words)})"
    return f"""for (var i = thread; i < {size}u; i += {THREADS}u) {{
        key_[i] = qkv[{keys} + i];
        value_[i] = qkv[{keys} + {heads.kv_heads * size}u + i];
    }}
    {turn.code("query", size, str(turn.q_gain))}
    {turn.code("key_", size, str(turn.k_gain))}
    for (var i = thread; i < {size}u; i += {THREADS}u) {{ {rounded} }}
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
        let to = ({heads.at("position")} + own * {heads.head_words}u) / 4u;
        for (var i = thread; i < {heads.row_words // 4}u; i += {THREADS}u) {{
            cache[to + i] = {stored.replace("@", "key_")};
            cache[to + {heads.values_words // 4}u + i] = {stored.replace("@", "value_")};
        }}
    }}"""
