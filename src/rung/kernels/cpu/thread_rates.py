"""Measure how fast numbers of threads read memory together, with a barrier behind each step as a token has them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from rung.kernels.cpu.chunks import sizes, take_chunk
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.thread_pool import Program, Team
from rung.kernels.isa.generic import add, load, read_int, total, write_float, zero

#: Bytes that are read in one step, steps of a turn, and how often each number of threads takes its turn.
STEP, STEPS, _TURNS = 8 << 20, 8, 4
#: Bytes of what a chunk is counted in.
_GROUP = 16 << 10


@kernel(3)
def read_chunks(words, thread, threads):
    """Words: counter, chunks, their ends (counted in groups), data, bytes of a group, and a place for each sum."""
    chunks, ends, data, size = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    sums, chunk = (zero(), zero(), zero(), zero()), take_chunk(words, chunks, False)
    while chunk < chunks:
        first = read_int(ends + 8 * chunk)
        for address in range(data + first * size, data + read_int(ends + 8 * chunk + 8) * size, 256):
            sums = (
                add(sums[0], load(address)),
                add(sums[1], load(address + 64)),
                add(sums[2], load(address + 128)),
                add(sums[3], load(address + 192)),
            )
        chunk = take_chunk(words, chunks, False)
    whole = add(add(sums[0], sums[1]), add(sums[2], sums[3]))
    write_float(read_int(words + 40) + 64 * thread, total(whole))


def rates(counts: Sequence[int]) -> dict[str, float]:
    """Return bytes a second by number of threads (as text, for JSON); the best of some turns, taken alternately."""
    data = np.ones(STEP * STEPS // 4, np.float32)
    programs = {count: reading(data, count) for count in counts}
    teams = {count: Team(count) for count in counts}
    best = dict.fromkeys(counts, 0.0)
    for turn in range(1 + _TURNS):
        for count in counts:
            start = time.perf_counter()
            teams[count].run(programs[count])
            if turn:  # the first one wakes the threads and touches the memory
                best[count] = max(best[count], data.nbytes / (time.perf_counter() - start))
    return {str(count): rate for count, rate in best.items()}


def reading(data: np.ndarray, threads: int) -> Program:
    """The program that reads the data in ``STEPS`` steps; last in what it keeps, the sums of each thread."""
    groups = STEP // _GROUP
    ends = np.concatenate([[0], np.cumsum(sizes(groups, threads))]).astype(np.int64)
    sums = np.zeros(16 * threads, np.float32)
    steps = [
        np.array(
            [0, len(ends) - 1, ends.ctypes.data, data.ctypes.data + STEP * step, _GROUP, sums.ctypes.data], np.int64
        )
        for step in range(STEPS)
    ]
    return Program.of([(read_chunks.address, words) for words in steps], data, ends, sums)
