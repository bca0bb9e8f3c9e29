"""Prefix sums and a stable radix sort on the GPU: integers only, so the outcome depends on no order of threads.

The sort takes 8 bits in a pass. A block of ``BLOCK`` keys counts its digits; prefix sums over all blocks, digit by
digit, tell where each block writes its keys of a digit. Within a block a key's place follows from a bit mask of the
threads that have the same digit, so that equal keys keep their order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rung.kernels.webgpu.gpu import Dispatch, Gpu, Kernel
from rung.kernels.webgpu.info import declare

THREADS = 256
#: Keys that a workgroup of the sort takes, numbers that one of the prefix sums takes.
BLOCK, SUMMED = 8 * THREADS, 4 * THREADS
#: Bits of a digit, and how many digits there are.
BITS, DIGITS = 8, 256

#: The number of this thread among those of a dispatch in two dimensions, and the number of its workgroup.
INDEX = """
fn group_of(group: vec3<u32>, groups: vec3<u32>) -> u32 { return group.y * groups.x + group.x; }
"""
MAIN = """
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let block = group_of(group, groups);
"""
_SUM_BLOCKS = """
var<workgroup> partial: array<u32, 256>;
%MAIN%
    var sum = 0u;
    for (var k = 0u; k < 4u; k++) {
        let i = block * 1024u + 4u * thread + k;
        if (i < job[0]) { sum += VALUE; }
    }
    partial[thread] = sum;
    workgroupBarrier();
    for (var step = 128u; step > 0u; step = step >> 1u) {
        if (thread < step) { partial[thread] += partial[thread + step]; }
        workgroupBarrier();
    }
    if (thread == 0u && block * 1024u < job[0]) { sums[block] = partial[0]; }
}"""
_ADD_BEFORE = """
var<workgroup> partial: array<u32, 256>;
// each of partial and all before it, in sum
fn add_before(thread: u32) {
    for (var step = 1u; step < 256u; step = step << 1u) {
        var left = 0u;
        if (thread >= step) { left = partial[thread - step]; }
        workgroupBarrier();
        partial[thread] += left;
        workgroupBarrier();
    }
}"""
_SCAN_SUMS = (
    _ADD_BEFORE
    + """
%MAIN%
    let count = (job[0] + 1023u) / 1024u;
    var before = 0u;
    for (var first = 0u; first < count; first += 256u) {
        let i = first + thread;
        var own = 0u;
        if (i < count) { own = sums[i]; }
        partial[thread] = own;
        workgroupBarrier();
        add_before(thread);
        if (i < count) { sums[i] = before + partial[thread] - own; }
        before += partial[255];
        workgroupBarrier();
    }
    if (thread == 0u) { sums[count] = before; }
}"""
)
_SCAN_BLOCKS = (
    _ADD_BEFORE
    + """
%MAIN%
    var own: array<u32, 4>;
    var sum = 0u;
    for (var k = 0u; k < 4u; k++) {
        let i = block * 1024u + 4u * thread + k;
        own[k] = sum;
        if (i < job[0]) { sum += VALUE; }
    }
    partial[thread] = sum;
    workgroupBarrier();
    add_before(thread);
    if (block * 1024u < job[0]) {
        let before = sums[block] + partial[thread] - sum;
        for (var k = 0u; k < 4u; k++) {
            let i = block * 1024u + 4u * thread + k;
            if (i < job[0]) { sums_before[i] = before + own[k]; }
        }
        if (block == 0u && thread == 0u) { sums_before[job[0]] = sums[(job[0] + 1023u) / 1024u]; }
    }
}"""
)
_COUNT_DIGITS = """
var<workgroup> counts: array<atomic<u32>, 256>;
%MAIN%
    atomicStore(&counts[thread], 0u);
    workgroupBarrier();
    for (var k = 0u; k < 8u; k++) {
        let i = block * 2048u + 256u * k + thread;
        if (i < job[0]) { atomicAdd(&counts[(keys[i] >> job[1]) & 255u], 1u); }
    }
    workgroupBarrier();
    if (block < job[2]) { table[thread * job[2] + block] = atomicLoad(&counts[thread]); }
}"""
_SCATTER = """
var<workgroup> masks: array<atomic<u32>, 2048>;
var<workgroup> places: array<u32, 256>;
%MAIN%
    if (block < job[2]) { places[thread] = table[thread * job[2] + block]; }
    for (var word = 0u; word < 8u; word++) { atomicStore(&masks[8u * thread + word], 0u); }
    workgroupBarrier();
    for (var k = 0u; k < 8u; k++) {
        let i = block * 2048u + 256u * k + thread;
        var key = 0u;
        var digit = 0u;
        if (i < job[0]) {
            key = keys[i];
            digit = (key >> job[1]) & 255u;
            atomicOr(&masks[8u * digit + (thread >> 5u)], 1u << (thread & 31u));
        }
        workgroupBarrier();
        if (i < job[0]) {
            var place = places[digit];
            for (var word = 0u; word < (thread >> 5u); word++) {
                place += countOneBits(atomicLoad(&masks[8u * digit + word]));
            }
            let own = atomicLoad(&masks[8u * digit + (thread >> 5u)]);
            place += countOneBits(own & ((1u << (thread & 31u)) - 1u));
            sorted_keys[place] = key;
            sorted_values[place] = values[i];
        }
        workgroupBarrier();
        var found = 0u;
        for (var word = 0u; word < 8u; word++) {
            found += countOneBits(atomicLoad(&masks[8u * thread + word]));
            atomicStore(&masks[8u * thread + word], 0u);
        }
        places[thread] += found;
        workgroupBarrier();
    }
}"""


def shader(kinds: Sequence[str], writes: Sequence[int], body: str) -> str:
    """Return a shader with these buffers, ``name: type`` each, of which some are written."""
    return f"{declare(kinds, writes)}\n{INDEX}{body.replace('%MAIN%', MAIN)}"


def grid(groups: int, most: int) -> tuple[int, int]:
    """Return workgroups in two dimensions, each at most ``most``, for at least so many in one."""
    across = min(max(groups, 1), most)
    return across, max(-(-groups // across), 1)


class Scratch(NamedTuple):
    """Buffers of a sort of ``count`` keys: the digits of its blocks, sums (of as many numbers as well), and keys and
    values of every other pass."""

    table: Any
    sums: Any
    keys: Any
    values: Any

    @classmethod
    def of(cls, gpu: Gpu, count: int) -> Scratch:
        """Reserve them. Raises ``OutOfMemory``."""
        table = DIGITS * -(-count // BLOCK) + 1
        return cls(
            gpu.bindable(4 * table), sums_of(gpu, max(table, count)), gpu.bindable(4 * count), gpu.bindable(4 * count)
        )


def sums_of(gpu: Gpu, count: int) -> Any:
    """Return the scratch of prefix sums over so many numbers."""
    return gpu.bindable(4 * (-(-count // SUMMED) + 1))


def job(gpu: Gpu, *words: int) -> Any:
    """Return a buffer of a few words that a dispatch reads."""
    return gpu.upload([np.array(words, np.uint32)])


@functools.cache
def _prefix_code(value: str, more: tuple[str, ...]) -> tuple[str, str, str]:
    kinds = ["job: array<u32>", "values: array<u32>", *more, "sums: array<u32>"]
    last = len(kinds) - 1
    return (
        shader(kinds, (last,), _SUM_BLOCKS.replace("VALUE", value)),
        shader([kinds[0], kinds[-1]], (1,), _SCAN_SUMS),
        shader([*kinds, "sums_before: array<u32>"], (last + 1,), _SCAN_BLOCKS.replace("VALUE", value)),
    )


def prefix_sums(
    gpu: Gpu, size: int, source: Any, sums: Any, sums_before: Any, value: str = "values[i]", chosen: Any = None
) -> Iterator[Dispatch]:
    """Yield the kernels of ``sums_before[i]`` = sum of ``value`` over all numbers before i, for i from 0 to ``size``.

    ``value`` is WGSL over ``values`` (u32, ``source``), ``i``, and where it is given ``chosen`` (u32 [size], places in
    ``source``).
    """
    more, buffers = ((), []) if chosen is None else (("chosen: array<u32>",), [chosen])
    first, second, third = _prefix_code(value, more)
    count, blocks = job(gpu, size), -(-size // SUMMED)
    reads, unwritten = (4, *(4 * size for _ in (source, *buffers))), (False,) * (2 + len(buffers))
    across, down = grid(blocks, gpu.limits.groups)
    summed = 4 * (blocks + 1)
    kernel = Kernel(first, (*unwritten, True), (*reads, summed), 4 * THREADS)
    yield gpu.bind(kernel, [count, source, *buffers, sums], across, down)
    yield gpu.bind(Kernel(second, (False, True), (4, summed), 4 * THREADS), [count, sums], 1)
    kernel = Kernel(third, (*unwritten, False, True), (*reads, summed, 4 * (size + 1)), 4 * THREADS)
    yield gpu.bind(kernel, [count, source, *buffers, sums, sums_before], across, down)


@functools.cache
def _sort_code() -> tuple[str, str]:
    kinds = ["job: array<u32>", "keys: array<u32>", "values: array<u32>", "table: array<u32>"]
    return (
        shader([*kinds[:2], kinds[3]], (2,), _COUNT_DIGITS),
        shader([*kinds, "sorted_keys: array<u32>", "sorted_values: array<u32>"], (4, 5), _SCATTER),
    )


def sort(gpu: Gpu, size: int, keys: Any, values: Any, bits: int, scratch: Scratch) -> tuple[list[Dispatch], Any, Any]:
    """Return the kernels that sort ``size`` keys of so many bits with their values, both u32, and the buffers in which
    both are then: those that are given, or those of ``scratch``."""
    dispatches: list[Dispatch] = []
    blocks = -(-size // BLOCK)
    across, down = grid(blocks, gpu.limits.groups)
    count_digits, scatter = _sort_code()
    spare, arrays, digits = (scratch.keys, scratch.values), (keys, values), 4 * DIGITS * blocks
    table = gpu.bindable(digits + 4)
    for shift in range(0, bits, BITS):
        words = job(gpu, size, shift, blocks)
        kernel = Kernel(count_digits, (False, False, True), (12, 4 * size, digits), 4 * DIGITS)
        dispatches.append(gpu.bind(kernel, [words, arrays[0], scratch.table], across, down))
        dispatches += prefix_sums(gpu, DIGITS * blocks, scratch.table, scratch.sums, table)
        reaches = (12, 4 * size, 4 * size, digits, 4 * size, 4 * size)
        kernel = Kernel(scatter, (False,) * 4 + (True,) * 2, reaches, 4 * 9 * DIGITS)
        dispatches.append(gpu.bind(kernel, [words, *arrays, table, *spare], across, down))
        spare, arrays = arrays, spare
    return dispatches, *arrays
