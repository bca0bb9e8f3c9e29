"""Kernels that draw the token after a row of logits, and give it to the next token's kernels.

What is drawn is the token that ``rung.ops.sample`` draws of the same logits. Its masses are whole numbers of 42 bits,
which a GPU does not have: here they are float32, and where a sum of them is nearer to what it is compared with than
``UNSURE`` of the whole, 0xfffffffe says that the processor has to draw. So it is, too, where a filter leaves more
tokens than are looked at, or some of those that are equal.

A filter keeps the tokens from some logit on. Logits are compared as integers of the same order, so that this one is
found bit by bit: from the highest bit on, a bit is set if enough tokens or masses are left then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rung.kernels.webgpu.choose import ORDERED
from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import AHEAD, INFO, MOST_AHEAD, POSITION, TOKEN, declare

#: Threads of a workgroup, and the parts of a row of logits; of each part so many of the largest are looked at.
THREADS, PARTS, SLOTS = 64, 64, 64
#: Share of the whole by which a sum of float32 masses may be wrong: WGSL allows exp(-x) an error of (3 + 2 x) 2^-23.
UNSURE = 1e-5
#: What is written for a token that the processor has to draw.
PROCESSOR = 0xFFFFFFFE
#: Words: of a part its largest logit, the largest that is not looked at and its mass; then the logits and their tokens.
_HEAD = 3
FOUND_BYTES = 4 * PARTS * (_HEAD + 2 * SLOTS)
#: Words of the settings: 1 / temperature, top-k, top-p, min-p, and a random number of [0, 1) for each token.
_INVERSE, _TOP_K, _TOP_P, _MIN_P, _RANDOM = range(5)
SETTINGS_BYTES = 4 * (_RANDOM + MOST_AHEAD)
_LOWEST, _HIGHEST = 0x80000000 - 0x7F800000, 0x80000000 + 0x7F800000


def settings(inverse: float, top_k: int, top_p: float, min_p: float, random: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return the buffer of the settings of the next tokens: 1 / temperature, filters, and 64 random bits of each."""
    found = np.zeros(SETTINGS_BYTES // 4, np.uint32)
    floats = found.view(np.float32)
    floats[_INVERSE], floats[_TOP_P], floats[_MIN_P] = inverse, top_p, min_p
    found[_TOP_K] = top_k
    floats[_RANDOM : _RANDOM + len(random)] = [(bits >> 40) / (1 << 24) for bits in random]
    return found


_REDUCE = f"""{ORDERED}
var<workgroup> words: array<u32, {THREADS}>;
var<workgroup> floats: array<f32, {THREADS}>;
var<private> top: f32;
fn most(own: u32, thread: u32) -> u32 {{
    words[thread] = own;
    workgroupBarrier();
    var found = 0u;
    for (var t = 0u; t < {THREADS}u; t++) {{ found = max(found, words[t]); }}
    workgroupBarrier();
    return found;
}}
fn count(own: u32, thread: u32) -> u32 {{
    words[thread] = own;
    workgroupBarrier();
    var found = 0u;
    for (var t = 0u; t < {THREADS}u; t++) {{ found += words[t]; }}
    workgroupBarrier();
    return found;
}}
fn total(own: f32, thread: u32) -> f32 {{
    floats[thread] = own;
    workgroupBarrier();
    var found = 0.0;
    for (var t = 0u; t < {THREADS}u; t++) {{ found += floats[t]; }}
    workgroupBarrier();
    return found;
}}
fn number(key: u32) -> f32 {{
    if (key < 0x80000000u) {{ return -bitcast<f32>(0x80000000u - key); }}
    return bitcast<f32>(key - 0x80000000u);
}}
fn mass(key: u32) -> f32 {{
    let reach = max((number(max(key, {_LOWEST + 1}u)) - top) * bitcast<f32>(settings[{_INVERSE}]), -87.0);
    return select(0.0, exp(reach), key > {_LOWEST}u);
}}"""
_MAIN = f"""@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{"""


def part(vocabulary: int, filtered: bool) -> Kernel:
    """Return the kernel that looks at a part of the logits; ``PARTS`` workgroups.

    Its buffers are logits [vocabulary], the settings and what it finds. A part are tokens that follow each other, or,
    ``filtered``, ``THREADS`` of each ``THREADS * PARTS``, since the likeliest ones are often among the first.
    """
    loop, _ = _loop(vocabulary, filtered)
    code = f"""{declare(["logits: array<u32>", "settings: array<u32>", "found: array<u32>"], writes=(2,))}
{_REDUCE}
{_MAIN}
    var own = 0u;
    {loop} {{ own = max(own, ordered(logits[i])); }}
    let highest = most(own, thread);
    top = number(clamp(highest, {_LOWEST + 1}u, {_HIGHEST - 1}u));
    var sum = 0.0;
    {loop} {{ sum += mass(ordered(logits[i])); }}
    let whole = total(sum, thread);
    if (thread == 0u) {{
        found[id.x] = highest;
        found[{2 * PARTS}u + id.x] = bitcast<u32>(whole);
    }}
    {_largest(loop) if filtered else ""}
}}"""
    return Kernel(code, (False, False, True), (4 * vocabulary, SETTINGS_BYTES, FOUND_BYTES), 8 * THREADS)


def _loop(vocabulary: int, filtered: bool) -> tuple[str, int]:
    """Return, as WGSL, the loop of a thread over a part, and the tokens of a part that follow each other."""
    size = -(-vocabulary // PARTS)
    if filtered:
        step = THREADS * PARTS
        return f"for (var i = id.x * {THREADS}u + thread; i < {vocabulary}u; i += {step}u)", size
    end = f"min(id.x * {size}u + {size}u, {vocabulary}u)"
    return f"for (var i = id.x * {size}u + thread; i < {end}; i += {THREADS}u)", size


def _largest(loop: str) -> str:
    """Return the WGSL that writes the ``SLOTS`` largest logits of a part and the largest of the others."""
    return f"""var below = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {{
        var own = 0u;
        {loop} {{ own += u32(ordered(logits[i]) >= (below | bit)); }}
        if (count(own, thread) > {SLOTS}u) {{ below |= bit; }}
    }}
    own = 0u;
    {loop} {{ own += 1u; }}
    let least = below + u32(count(own, thread) > {SLOTS}u);
    var others = 0u;
    own = 0u;
    {loop} {{
        let key = ordered(logits[i]);
        if (key >= least) {{ own += 1u; }} else {{ others = max(others, key); }}
    }}
    others = most(others, thread);
    if (thread == 0u) {{ found[{PARTS}u + id.x] = others; }}
    let taken = count(own, thread);
    words[thread] = own;
    workgroupBarrier();
    var slot = 0u;
    for (var t = 0u; t < thread; t++) {{ slot += words[t]; }}
    {loop} {{
        let key = ordered(logits[i]);
        if (key >= least) {{
            found[{_HEAD * PARTS}u + slot * {PARTS}u + id.x] = key;
            found[{(_HEAD + SLOTS) * PARTS}u + slot * {PARTS}u + id.x] = i;
            slot++;
        }}
    }}
    for (var empty = taken + thread; empty < {SLOTS}u; empty += {THREADS}u) {{
        found[{_HEAD * PARTS}u + empty * {PARTS}u + id.x] = 0u;
    }}"""


def draw(vocabulary: int, filtered: bool) -> Kernel:
    """Return the kernel that draws a token of what ``part`` has found and gives it to the next token's kernels, one
    position further; one workgroup.

    Its buffers are logits, the settings, what was found, info and the chosen tokens [MOST_AHEAD]: 0xffffffff where the
    largest logit is no number, ``PROCESSOR`` where the processor has to draw.
    """
    kinds = ["logits: array<u32>", "settings: array<u32>", "found: array<u32>", "info: array<u32>"]
    code = f"""{declare([*kinds, "chosen: array<u32>"], writes=(3, 4))}
{_REDUCE}
{_SUMS if filtered else ""}
fn setting(at: u32) -> f32 {{ return bitcast<f32>(settings[at]); }}
{_MAIN}
    let highest = most(found[thread], thread);
    top = number(clamp(highest, {_LOWEST + 1}u, {_HIGHEST - 1}u));
    let own = bitcast<f32>(found[{2 * PARTS}u + thread]) * mass(found[thread]);
    let whole = total(own, thread);
    let random = setting({_RANDOM}u + info[{AHEAD}u]);
    var sure = true;
    var token = 0u;
    {_filtered(vocabulary) if filtered else _unfiltered(vocabulary)}
    if (thread > 0u) {{ return; }}
    sure = sure && token < {vocabulary}u;
    let exists = highest < {_HIGHEST}u && highest > {_LOWEST}u;
    chosen[info[{AHEAD}u]] = select(0xffffffffu, select({PROCESSOR}u, token, sure), exists);
    info[{TOKEN}u] = min(token, {vocabulary - 1}u);
    info[{POSITION}u] += 1u;
    info[{AHEAD}u] += 1u;
}}"""
    sizes = (4 * vocabulary, SETTINGS_BYTES, FOUND_BYTES, 4 * INFO, 4 * MOST_AHEAD)
    return Kernel(code, (False, False, False, True, True), sizes, 8 * THREADS)


_EACH = f"for (var s = thread; s < {SLOTS * PARTS}u; s += {THREADS}u)"
_KEY, _ID = f"found[{_HEAD * PARTS}u + s]", f"found[{(_HEAD + SLOTS) * PARTS}u + s]"
_SUMS = f"""fn above(key: u32, thread: u32) -> f32 {{
    var own = 0.0;
    {_EACH} {{ if ({_KEY} > key) {{ own += mass({_KEY}); }} }}
    return total(own, thread);
}}
fn counted(key: u32, thread: u32) -> u32 {{
    var own = 0u;
    {_EACH} {{ own += u32({_KEY} >= key); }}
    return count(own, thread);
}}
fn before(token: u32, least: u32, thread: u32) -> f32 {{
    var own = 0.0;
    {_EACH} {{ if ({_KEY} >= least && {_ID} < token) {{ own += mass({_KEY}); }} }}
    return total(own, thread);
}}"""


_TOP_K_CODE = f"""if (settings[{_TOP_K}] > 0u) {{
        least = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {{
            if (counted(least | bit, thread) >= settings[{_TOP_K}]) {{ least |= bit; }}
        }}
        least = max(least, {_LOWEST + 1}u);
        base = above(least - 1u, thread);
    }}"""
_TOP_P_CODE = f"""if (setting({_TOP_P}u) < 1.0) {{
        let limit = setting({_TOP_P}u) * base;
        var below = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {{
            if (above(below | bit, thread) >= limit) {{ below |= bit; }}
        }}
        least = max(least, below + 1u);
        var own = 0u;
        {_EACH} {{ if ({_KEY} >= least) {{ own = max(own, ~{_KEY}); }} }}
        let last = ~most(own, thread);
        let larger = above(last, thread);
        let next = counted(last, thread) - counted(last + 1u, thread);
        let kept = larger + mass(last) * f32(next - 1u);
        sure = abs(larger - limit) > {UNSURE} * base && abs(larger + mass(last) - limit) > {UNSURE} * base;
        sure = sure && (next == 1u || kept < limit - {UNSURE} * base);
    }}"""
_MIN_P_CODE = f"""let share = setting({_MIN_P}u);
    if (share > 0.0) {{
        var own = 0u;
        var near = 0u;
        {_EACH} {{
            let m = mass({_KEY});
            if ({_KEY} >= least && m >= share) {{ own = max(own, ~{_KEY}); }}
            near += u32({_KEY} >= least && abs(m - share) <= {UNSURE} * share);
        }}
        least = max(least, ~most(own, thread));
        sure = sure && count(near, thread) == 0u;
    }}"""


def _filtered(vocabulary: int) -> str:
    """Return the WGSL that finds the least logit that filters keep, then the token."""
    highest_bit = 1 << (vocabulary - 1).bit_length()
    return f"""let others = most(found[{PARTS}u + thread], thread);
    var least = {_LOWEST + 1}u;
    var base = whole;
    {_TOP_K_CODE}
    {_TOP_P_CODE}
    let cut = least;
    {_MIN_P_CODE}
    sure = sure && (others < cut || (share > 0.0 && mass(others) < share * {1 - UNSURE}));
    let kept = above(least - 1u, thread);
    let limit = random * kept;
    for (var bit = {highest_bit}u; bit > 0u; bit >>= 1u) {{
        if (before(token | bit, least, thread) <= limit) {{ token |= bit; }}
    }}
    let start = before(token, least, thread);
    let end = before(token + 1u, least, thread);
    sure = sure && (start == 0.0 || limit - start > {UNSURE} * kept) && end - limit > {UNSURE} * kept;"""


def _unfiltered(vocabulary: int) -> str:
    """Return the WGSL that finds the part of the token, the thread's tokens in it, and the token."""
    _, size = _loop(vocabulary, False)
    each = -(-size // THREADS)
    return f"""let limit = random * whole;
    var start = 0.0;
    var chosen_part = 0u;
    floats[thread] = own;
    workgroupBarrier();
    for (var p = 0u; p < {PARTS}u && start + floats[p] <= limit; p++) {{
        start += floats[p];
        chosen_part = p + 1u;
    }}
    workgroupBarrier();
    let end = min(chosen_part * {size}u + {size}u, {vocabulary}u);
    let first = chosen_part * {size}u + thread * {each}u;
    var sum = 0.0;
    for (var i = first; i < min(first + {each}u, end); i++) {{ sum += mass(ordered(logits[i])); }}
    floats[thread] = sum;
    workgroupBarrier();
    token = chosen_part * {size}u;
    for (var t = 0u; t < {THREADS}u && start + floats[t] <= limit; t++) {{
        start += floats[t];
        token += {each}u;
    }}
    var last = 0.0;
    while (token < end) {{
        last = mass(ordered(logits[token]));
        if (start + last > limit) {{ break; }}
        start += last;
        token++;
    }}
    sure = token < end && start + last - limit > {UNSURE} * whole;
    sure = sure && (start == 0.0 || limit - start > {UNSURE} * whole);"""
