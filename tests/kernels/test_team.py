"""Programs of several threads: every step runs once on each thread, all of a step before any of the next."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from rung.kernels.cpu import thread_pool
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.thread_pool import Program, Team, next_chunk
from rung.kernels.isa.generic import fetch_add, read_int, write_int
from tests.interrupting import alarms, interrupt, moments


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
    words, steps = program(steps=20, chunks=10)
    team = Team(threads)
    for run in range(1, 4):
        if how == "team":
            team.run(steps)
        else:
            thread_pool.run_program(steps, threads)
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


def whole(words, steps, team):
    """Return whether a run computes what it should."""
    for each in words:
        each[2] = 0
    team.run(steps)
    return all(each[2] == 45 for each in words) and all(each[5] == 45 for each in words[1:])


def test_an_interrupt_at_any_moment_leaves_the_next_run_whole():
    words, steps = program(steps=20, chunks=10)
    team = Team(3)
    assert whole(words, steps, team)
    start = time.perf_counter()
    team.run(steps)
    longest = 5 * (time.perf_counter() - start)
    cut = turns = 0
    with alarms():
        while cut <= 10:
            cut += sum(interrupt(lambda: [team.run(steps) for _ in range(5)], at) for at in moments(60, longest, turns))
            turns += 1
            longest *= 0.7  # the first run may have been slowed down by other programs
        for _ in range(5):
            assert whole(words, steps, team)


def test_an_interrupt_between_waking_the_others_and_the_run_costs_nothing(monkeypatch):
    words, steps = program(steps=5, chunks=10)
    team = Team(3)

    def stopped(*arguments):
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(team, "lead", stopped)
            with pytest.raises(KeyboardInterrupt):
                team.run(steps)
        assert whole(words, steps, team)


def test_threads_that_share_a_team_wait_for_each_other():
    team = Team(2)
    several = [program(steps=5, chunks=10) for _ in range(4)]
    right = []

    def work(words, steps):
        right.append(all(whole(words, steps, team) for _ in range(200)))

    threads = [threading.Thread(target=work, args=each) for each in several]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert right == [True] * 4


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_makes_a_team_of_its_own(busy):
    """Also while another thread of the parent is in the middle of a run."""
    _, steps = program(steps=5, chunks=10)
    mine, of_mine = program(steps=5, chunks=10)
    thread_pool.run_program(steps, 2)
    teams, over = thread_pool.TEAMS, threading.Event()
    work = threading.Thread(target=lambda: [teams.of(2).run(steps) for _ in iter(over.is_set, True)])
    if busy:
        work.start()
    try:
        for _ in range(5):
            child = os.fork()
            if not child:
                signal.alarm(20)
                threads = {teams.of(2).run(of_mine) or threading.active_count()}
                os._exit(0 if threads == {2} and all(each[2] == 45 for each in mine) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        if busy:
            work.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_the_openmp_of_its_parent():
    import torch

    torch.ones(300, 300) @ torch.ones(300, 300)
    words, steps = program(steps=5, chunks=10)
    thread_pool.run_program(steps, 2)
    child = os.fork()
    if not child:
        signal.alarm(20)
        thread_pool.run_program(steps, 2)
        os._exit(0 if all(each[2] == 90 for each in words) else 1)
    assert os.waitpid(child, 0)[1] == 0
