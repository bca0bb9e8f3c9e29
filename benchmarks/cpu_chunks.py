"""How the steps of a token spread over the cores of processors that are not here: a simulation of their chunks.

    python benchmarks/cpu_chunks.py [--seconds 1]

The chunks are those that rung cuts (``rung.kernels.cpu.thread_pool``). Measured with one and two threads: what taking a
chunk costs, and what the barrier behind a step costs. The rest is arithmetic: threads of given speeds take one chunk
after the other, taking is done by one thread at a time, and a barrier costs each thread one more turn at a counter. No
limit of memory is in it: it shows what the cut loses, not how fast a machine is. The last column cuts each step into
six equal chunks a thread, as rung did before.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Sequence

import numpy as np

#: Processors by the speeds of their threads; the fastest is 1.
MACHINES: dict[str, list[float]] = {
    "1 core": [1.0],
    "2 cores": [1.0] * 2,
    "2 cores, one shared": [1.0, 0.4],
    "4 cores (Pi 4, Pi 5)": [1.0] * 4,
    "4 + 4 (M1)": [1.0] * 4 + [0.3] * 4,
    "1 + 3 + 4 (phone)": [1.0] + [0.85] * 3 + [0.3] * 4,
    "8 + 8 (i7-12900)": [1.0] * 8 + [0.55] * 8,
    "16 cores": [1.0] * 16,
    "64 cores": [1.0] * 64,
    "2 nodes of 32 cores": [1.0] * 64,
}
#: Groups of 16 rows in the steps of a layer, and bytes of a row in four bits: qkv, output, gate and up, down.
MODELS = {
    "0.3B": ([[64, 16, 16], [64], [176], [64]], [576, 576, 576, 1584], 22),
    "8B": ([[256, 64, 64], [256], [896], [256]], [2304, 2304, 2304, 8064], 32),
}
#: Bytes a second that one fast core multiplies, about.
_CORE = 12e9


def simulate(chunks: Sequence[Sequence[int]], speeds: Sequence[float], take: float, far: float = 1.0) -> float:
    """Return when the last chunk is done, in groups that a core of speed 1 multiplies meanwhile.

    ``chunks``: (weight, first, last) in the order in which they are cut. ``take``: the time at the counter, which is
    one thread's at a time. ``far`` below 1: the machine has two halves, and groups of the other half are read at that
    share of the speed; the second half of the threads begins at the end of the chunks.
    """
    halves = far < 1
    free = [(0.0, thread) for thread in range(len(speeds))]
    heapq.heapify(free)
    first, last, counter, end = 0, len(chunks), 0.0, 0.0
    middle = _middle(chunks)
    while first < last:
        at, thread = heapq.heappop(free)
        second = halves and thread >= len(speeds) // 2
        number = last - 1 if second else first
        first, last = (first, last - 1) if second else (first + 1, last)
        _, begin, until = chunks[number]
        counter = max(counter, at) + take
        slower = far if halves and second != (number >= middle) else 1.0
        done = counter + (until - begin) / (speeds[thread] * slower)
        end = max(end, done)
        heapq.heappush(free, (done, thread))
    return end


def _middle(chunks: Sequence[Sequence[int]]) -> int:
    """The first chunk of the second half of the groups."""
    ends = np.cumsum([until - begin for _, begin, until in chunks])
    return int(np.searchsorted(ends, ends[-1] / 2)) + 1 if len(chunks) else 0


def equal(groups: Sequence[int], threads: int) -> list[tuple[int, int, int]]:
    """Six equal chunks a thread."""
    size = max(1, -(-sum(groups) // (6 * threads)))
    return [
        (weight, first, min(first + size, count))
        for weight, count in enumerate(groups)
        for first in range(0, count, size)
    ]


def measured(threads: int, seconds: float) -> tuple[float, float]:
    """Return seconds that taking a chunk and that ending a step takes here, on that many threads at once."""
    from rung.kernels.cpu.compiled import kernel
    from rung.kernels.cpu.thread_pool import Program, Team, take_chunk
    from rung.kernels.isa.generic import read_int

    @kernel(3)
    def empty(words, thread, threads):
        chunks = read_int(words + 8)
        while take_chunk(words, chunks, False) < chunks:
            pass

    team, best = Team(threads), {}
    for chunks in (0, 256):
        steps = [(empty.address, np.array([0, chunks], np.int64)) for _ in range(16)]
        program, until = Program.of(steps), time.perf_counter() + seconds / 4
        team.run(program)
        while (start := time.perf_counter()) < until:
            team.run(program)
            taken = (time.perf_counter() - start) / len(steps)
            best[chunks] = min(best.get(chunks, taken), taken)
    return max(best[256] - best[0], 0.0) / 256, best[0]


def share(model: str, speeds: Sequence[float], costs: tuple[float, float], nodes: bool, even: bool = False) -> float:
    """Return the share of the cores' speed that is left for a token of a model, 1 for all."""
    from rung.kernels.cpu.thread_pool import cut

    steps, row_bytes, _ = MODELS[model]
    take, barrier = costs
    spent = ideal = 0.0
    for groups, bytes_of_row in zip(steps, row_bytes, strict=True):
        group = 16 * bytes_of_row / _CORE
        chunks = equal(groups, len(speeds)) if even else cut(tuple(groups), len(speeds), nodes).tolist()
        spent += group * simulate(chunks, speeds, take / group, 0.6 if nodes else 1.0) + barrier * len(speeds)
        ideal += group * sum(groups) / sum(speeds)
    return ideal / spent


def main() -> None:
    """Measure the costs, and print a line for each processor and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    seconds = parser.parse_args().seconds
    alone, together = measured(1, seconds), measured(2, seconds)
    print(f"a chunk {1e9 * alone[0]:.0f} ns, with two threads {1e9 * together[0]:.0f} ns; ", end="")
    print(f"a step {1e9 * alone[1]:.0f} ns, with two threads {1e9 * together[1]:.0f} ns")
    print(f"{'':24}" + "".join(f"{model:>8}{'equal':>8}" for model in MODELS))
    for name, speeds in MACHINES.items():
        costs = alone if len(speeds) == 1 else (together[0], together[1] / 2)
        cells = [
            f"{100 * share(model, speeds, costs, 'nodes' in name, even):7.0f}%"
            for model in MODELS
            for even in (False, True)
        ]
        print(f"{name:24}" + "".join(cells))


if __name__ == "__main__":
    main()
