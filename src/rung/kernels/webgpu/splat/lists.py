"""The splats of each tile by depth, those of one depth in their order.

Splats that lie on a tile are sorted by depth; what each lists on its tiles is written in that order and sorted by tile.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from rung.kernels.webgpu.gpu import Dispatch, Gpu, Kernel
from rung.kernels.webgpu.splat.sorting import Scratch, grid, job, prefix_sums, shader, sort, sums_of

_COMPACT = """
%MAIN%
    let i = 256u * block + thread;
    if (i >= job[0]) { return; }
    let span = spans[i];
    let wide = (span.x >> 16u) - (span.x & 0xffffu);
    // on the tile (x, y) a splat stands at places.x + y * places.y + x among what all have listed, splat by splat
    places[i] = vec2<u32>(starts[i] - (span.y & 0xffffu) * wide - (span.x & 0xffffu), wide);
    if (starts[i + 1u] == starts[i]) { return; }
    let bits = bitcast<u32>(records[3u * i].w);
    depths[ranks[i]] = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);  // in the order of the numbers
    order[ranks[i]] = i;
}"""
_EXPAND = """
%MAIN%
    let i = 256u * block + thread;
    if (i >= job[0]) { return; }
    var low = 0u;  // the last splat by depth that begins at i or before
    var high = job[1] - 1u;
    while (low < high) {
        let middle = (low + high + 1u) / 2u;
        if (offsets[middle] <= i) { low = middle; } else { high = middle - 1u; }
    }
    let splat = order[low];
    let span = spans[splat];
    let left = span.x & 0xffffu;
    let wide = (span.x >> 16u) - left;
    let local = i - offsets[low];
    tiles[i] = ((span.y & 0xffffu) + local / wide) * job[2] + left + local % wide;
    listed[i] = splat;
}"""
_RANGES = """
%MAIN%
    let tile = 256u * block + thread;
    if (tile > job[1]) { return; }
    var low = 0u;  // how many are listed for tiles before this one
    var high = job[0];
    while (low < high) {
        let middle = (low + high) / 2u;
        if (tiles[middle] < tile) { low = middle + 1u; } else { high = middle; }
    }
    starts[tile] = low;
}"""


@functools.cache
def _codes() -> tuple[str, str, str]:
    kinds = ["job: array<u32>", "spans: array<vec2<u32>>", "starts: array<u32>", "ranks: array<u32>"]
    kinds += ["records: array<vec4<f32>>", "places: array<vec2<u32>>", "depths: array<u32>", "order: array<u32>"]
    expanding = ["job: array<u32>", "spans: array<vec2<u32>>", "order: array<u32>", "offsets: array<u32>"]
    expanding += ["tiles: array<u32>", "listed: array<u32>"]
    ranging = ["job: array<u32>", "tiles: array<u32>", "starts: array<u32>"]
    return shader(kinds, (5, 6, 7), _COMPACT), shader(expanding, (4, 5), _EXPAND), shader(ranging, (2,), _RANGES)


class Counted(NamedTuple):
    """Where each splat begins in what all list, ``starts``, and among those that list something, ``ranks``; u32
    [N + 1], the last is the sum."""

    starts: Any
    ranks: Any


def count(gpu: Gpu, splats: int, counts: Any) -> tuple[Counted, list[Dispatch]]:
    """Return both of so many splats, and the kernels that find them from the ``counts`` of their tiles."""
    counted = Counted(gpu.bindable(4 * splats + 4), gpu.bindable(4 * splats + 4))
    sums = sums_of(gpu, splats)
    kernels = [*prefix_sums(gpu, splats, counts, sums, counted.starts)]
    kernels += prefix_sums(gpu, splats, counts, sums, counted.ranks, "min(values[i], 1u)")
    return counted, kernels


class Lists(NamedTuple):
    """``splats`` of all tiles, one tile after the other; ``starts`` of the tiles there, u32 [tiles + 1]; ``places`` of
    what each splat lists, see the kernel that writes them, vec2 [N]."""

    splats: Any
    starts: Any
    places: Any


def lists(
    gpu: Gpu,
    sizes: tuple[int, int, int],
    across: int,
    tiles: int,
    buffers: tuple[Any, Any, Any],
    counted: Counted,
) -> tuple[Lists, list[Dispatch]]:
    """Return the lists of ``tiles`` tiles, ``across`` in a row, and the kernels that make them.

    ``sizes``: splats, those that list something, and what they list, all above 0; ``buffers``: spans, counts and
    records. Raises ``OutOfMemory``.
    """
    splats, visible, listed = sizes
    spans, counts, records = buffers
    compact, expand, ranges = _codes()
    most = gpu.limits.groups
    places, depths, order = gpu.bindable(8 * splats), gpu.bindable(4 * visible), gpu.bindable(4 * visible)
    writes = (False,) * 5 + (True,) * 3
    reaches = (4, 8 * splats, 4 * splats + 4, 4 * splats + 4, 48 * splats, 8 * splats, 4 * visible, 4 * visible)
    bound = [job(gpu, splats), spans, *counted, records, places, depths, order]
    kernels = [gpu.bind(Kernel(compact, writes, reaches), bound, *grid(-(-splats // 256), most))]
    scratch = Scratch.of(gpu, max(visible, listed))
    sorting, _, order = sort(gpu, visible, depths, order, 32, scratch)
    offsets = gpu.bindable(4 * visible + 4)
    kernels += sorting
    kernels += prefix_sums(gpu, visible, counts, scratch.sums, offsets, "values[chosen[i]]", order)
    named, entries = gpu.bindable(4 * listed), gpu.bindable(4 * listed)
    expanding = (12, 8 * splats, 4 * visible, 4 * visible + 4, 4 * listed, 4 * listed)
    bound = [job(gpu, listed, visible, across), spans, order, offsets, named, entries]
    kernels.append(
        gpu.bind(Kernel(expand, (False,) * 4 + (True,) * 2, expanding), bound, *grid(-(-listed // 256), most))
    )
    sorting, named, entries = sort(gpu, listed, named, entries, max((tiles - 1).bit_length(), 1), scratch)
    kernels += sorting
    starts = gpu.bindable(4 * tiles + 4)
    kernel = Kernel(ranges, (False, False, True), (8, 4 * listed, 4 * tiles + 4))
    kernels.append(gpu.bind(kernel, [job(gpu, listed, tiles), named, starts], *grid(tiles // 256 + 1, most)))
    return Lists(entries, starts, places), kernels
