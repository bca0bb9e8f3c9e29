"""Programs of several threads: every step runs once on each thread, all of a step before any of the next."""

import itertools

import numpy as np
import pytest

from rung.kernels.cpu import parallel
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.team import Program, Team, next_chunk
from rung.kernels.simd.generic import fetch_add, read_int, write_int


@kernel(3)
def take_chunks(words, thread, threads):
    """Words: counter, chunks, sum of the chunks taken, calls, address of the step before or 0, its sum as seen."""
    fetch_add(words + 24, 1)
    before = read_int(words + 32)
    if before:
        write_int(words + 40, read_int(before + 16))
    while True:
        chunk = next_chunk(words)
        if chunk >= read_int(words + 8):
            break
        fetch_add(words + 16, chunk)


def program(steps, chunks):
    words = [np.array([0, chunks, 0, 0, 0, -1], np.int64) for _ in range(steps)]
    for before, after in itertools.pairwise(words):
        after[4] = before.ctypes.data
    return words, Program.of([(take_chunks.address, each) for each in words])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("how", ["team", "openmp"])
def test_every_step_is_whole_before_the_next_begins(threads, how):
    words, made = program(steps=20, chunks=10)
    team = Team(threads)
    for run in range(1, 4):
        if how == "team":
            team.run(made)
        else:
            parallel.run_program(made, threads)
        for each in words:
            assert each[0] == 0, "the counter is ready for the next run"
            assert each[2] == 45 * run, "every chunk once"
            assert each[3] % run == 0
            assert each[3] <= threads * run
        assert all(each[5] == 45 * run for each in words[1:]), "a step began before the one before it was done"
    if how == "team":
        assert all(each[3] == 3 * threads for each in words)


def test_a_team_that_is_let_go_ends_its_threads():
    import gc
    import threading

    before = set(threading.enumerate())  # threads of earlier teams may end meanwhile
    team = Team(3)
    team.run(program(2, 2)[1])
    own = set(threading.enumerate()) - before
    assert len(own) == 2
    del team
    gc.collect()
    for thread in own:
        thread.join(60)
    assert not any(thread.is_alive() for thread in own)
