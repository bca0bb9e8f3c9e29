"""Kernels that choose the likeliest token of a row of logits, and give it to the next token's kernels.

Logits are compared as integers of the same order, in which NaN comes last: a driver may take any comparison with NaN as
it likes. Of equal logits the first is chosen, as ``numpy.argmax`` does.
"""

from __future__ import annotations

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import AHEAD, INFO, MOST_AHEAD, POSITION, TOKEN, declare

#: Threads of a workgroup, and workgroups that look at the logits of a row.
THREADS, GROUPS = 64, 64
#: Bytes that ``likeliest`` writes for ``feed_back``.
FOUND_BYTES = 8 * GROUPS

#: The WGSL of a logit's integer.
ORDERED = """fn ordered(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return 0xffffffffu; }
    return select(0x80000000u + size, 0x80000000u - size, bits != size);
}"""
_BETTER = """fn better(one: vec2<u32>, other: vec2<u32>) -> vec2<u32> {
    return select(one, other, other.x > one.x || (other.x == one.x && other.y < one.y));
}"""


def likeliest(vocabulary: int) -> Kernel:
    """Return the kernel of the largest of each ``GROUPS``-th part of a row of logits; ``GROUPS`` workgroups.

    Its buffers are logits [vocabulary] and the integers of the largest ones with their tokens [GROUPS, 2].
    """
    code = f"""{declare(["logits: array<u32>", "found: array<vec2<u32>>"], writes=(1,))}
var<workgroup> best: array<vec2<u32>, {THREADS}>;
{_BETTER}
{ORDERED}
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    var mine = vec2<u32>(0u, 0u);
    for (var i = id.x * {THREADS}u + thread; i < {vocabulary}u; i += {THREADS * GROUPS}u) {{
        mine = better(mine, vec2<u32>(ordered(logits[i]), i));
    }}
    best[thread] = mine;
    workgroupBarrier();
    if (thread > 0u) {{ return; }}
    for (var t = 1u; t < {THREADS}u; t++) {{ mine = better(mine, best[t]); }}
    found[id.x] = mine;
}}"""
    return Kernel(code, (False, True), (4 * vocabulary, FOUND_BYTES), 8 * THREADS)


def feed_back() -> Kernel:
    """Return the kernel that gives the likeliest token to the next token's kernels, one position further; one
    workgroup.

    Its buffers are what ``likeliest`` has found, info, and the chosen tokens [MOST_AHEAD]; 0xffffffff where the largest
    logit is no number.
    """
    infinite = 0x80000000 + 0x7F800000
    code = f"""{declare(["found: array<vec2<u32>>", "info: array<u32>", "chosen: array<u32>"], writes=(1, 2))}
{_BETTER}
@compute @workgroup_size(1)
fn main() {{
    var best = found[0];
    for (var g = 1u; g < {GROUPS}u; g++) {{ best = better(best, found[g]); }}
    let number = best.x < {infinite}u && best.x > {0x80000000 - 0x7F800000}u;
    chosen[info[{AHEAD}u]] = select(0xffffffffu, best.y, number);
    info[{TOKEN}u] = best.y;
    info[{POSITION}u] += 1u;
    info[{AHEAD}u] += 1u;
}}"""
    return Kernel(code, (False, True, True), (FOUND_BYTES, 4 * INFO, 4 * MOST_AHEAD))
