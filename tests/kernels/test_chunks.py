"""Chunks of a step: every group once, however threads take them, and no core held up for long."""

import ctypes
import dataclasses
import importlib.util
import math
import os
import sys

import numpy as np
import pytest

from rung.kernels.cpu import nodes, thread_pool
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.thread_pool import Program, Team
from rung.kernels.isa.generic import fetch_add, read_int, write_int
from tests.hardware.trees import cores, tree
from tests.test_measure import ROOT

_spec = importlib.util.spec_from_file_location("cpu_chunks", ROOT / "benchmarks" / "cpu_chunks.py")
simulation = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = simulation  # dataclasses look there
_spec.loader.exec_module(simulation)

SHAPES = [(1,), (3, 2), (36, 12, 12), (96, 1), (8016,), (0, 5)]


@pytest.mark.parametrize("groups", SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("both", [False, True])
def test_every_group_lies_in_one_chunk(groups, threads, both):
    found = thread_pool.cut(groups, threads, both)
    taken = [(weight, group) for weight, first, last in found.tolist() for group in range(first, last)]
    assert sorted(taken) == [(weight, group) for weight, count in enumerate(groups) for group in range(count)]
    assert (found[:, 2] > found[:, 1]).all()


def test_the_first_half_of_each_weight_lies_before_the_second_of_any():
    found = thread_pool.cut((36, 12, 13), 8, from_both_ends=True)
    second = [first >= [18, 6, 6][weight] for weight, first, _ in found.tolist()]
    assert second == sorted(second)
    sizes = (found[:, 2] - found[:, 1]).tolist()
    assert min(sizes) == sizes[second.index(True)] == 1
    assert sizes[0] > 1 < sizes[-1]


@kernel(3)
def take(words, thread, threads):
    """Words: counter, chunks, address of a count for each chunk; from the end take 0: no thread, 1: half, 2: all."""
    from_end = read_int(words + 24) + (thread % 2) >= 2
    while True:
        chunk = thread_pool.take_chunk(words, read_int(words + 8), from_end)
        if chunk >= read_int(words + 8):
            break
        fetch_add(read_int(words + 16) + 8 * chunk, 1)


@pytest.mark.parametrize("how", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_from_both_ends_take_every_chunk_once(how, threads):
    counts = [np.zeros(number, np.int64) for number in (0, 1, 2, 500, 3)]
    words = [np.array([0, count.size, count.ctypes.data, how], np.int64) for count in counts]
    team = Team(threads)
    for run in range(1, 4):
        team.run(Program.of([(take.address, each) for each in words]))
        assert all((count == run).all() for count in counts)


@pytest.mark.parametrize(
    ("machine", "least", "better"),
    [
        ("1 core", 1.0, 0),
        ("2 cores", 0.99, 0.0),
        ("2 cores, one shared", 0.97, 0.08),
        ("4 cores (Pi 5)", 0.99, 0.0),
        ("4 + 4 (M1)", 0.95, 0.08),
        ("1 + 3 + 4 (phone)", 0.95, 0.05),
        ("8 + 8 (i7-12900)", 0.95, 0.02),
        ("16 cores (Ryzen 9 7950X)", 0.96, 0.0),
        ("64 cores (12 channels of DDR5)", 0.8, -0.01),
    ],
)
def test_slow_cores_hold_up_no_fast_ones(machine, least, better):
    """Where nothing costs anything and memory is no limit."""
    alone = dataclasses.replace(simulation.MACHINES[machine], bandwidth=math.inf)
    now = simulation.share("8B", alone)
    assert now >= least
    assert now >= simulation.share("8B", alone, even=True) + better


def test_two_nodes_read_what_is_near():
    machine = dataclasses.replace(simulation.MACHINES["2 nodes of 32 cores"], bandwidth=math.inf)
    assert simulation.share("8B", machine) > 0.75  # all of it at 0.6 of the speed would be below


def test_costs_of_the_simulation_are_one_after_the_other():
    """Two threads, four chunks of a group: a thread multiplies 10 groups a second."""
    chunks = [(0, first, first + 1) for first in range(4)]
    costs = simulation.Costs
    assert simulation.simulate(chunks, [10.0, 10.0]) == pytest.approx(0.2)
    assert simulation.simulate(chunks, [10.0, 10.0], costs(take=0.01)) == pytest.approx(0.23)  # 0.01 after 0.01, 0.11
    assert simulation.simulate(chunks, [10.0, 10.0], costs(take=1.0)) == pytest.approx(4.1)
    assert simulation.simulate(chunks, [10.0, 10.0], costs(arrive=0.05)) == pytest.approx(0.3)
    assert simulation.simulate(chunks, [10.0, 10.0], ready=[0.0, 9.0]) == pytest.approx(9.0)
    assert simulation.simulate(chunks[:3], [10.0, 10.0], ready=[0.0, 0.05]) == pytest.approx(0.2)


def test_threads_of_the_simulation_share_memory():
    chunks = [(0, first, first + 1) for first in range(4)]
    assert simulation.simulate(chunks, [10.0, 10.0], limit=10.0) == pytest.approx(0.4)
    assert simulation.simulate(chunks, [10.0, 10.0], limit=15.0) == pytest.approx(4 / 15)
    assert simulation.simulate(chunks[:1], [10.0, 10.0], limit=15.0) == pytest.approx(0.1)
    # two readers at 15 groups a second take two, then the first goes on alone at 10
    assert simulation.simulate(chunks[:3], [10.0, 10.0], limit=15.0) == pytest.approx(2 / 15 + 0.1)
    two_nodes = simulation.simulate(chunks, [10.0, 10.0], limit=10.0, far=0.5)
    assert two_nodes == pytest.approx(0.4)  # each reads its half of the chunks from its own memory, at 5


def test_a_token_of_the_simulation_is_its_steps_and_what_lies_between():
    step = simulation.Step((2,), 32)
    model = simulation.Model(3, (step,), step)
    machine = simulation.Machine((1.0, 1.0), core=2.0 * step.group_bytes)
    assert simulation.token_seconds(model, machine, simulation.Costs()) == pytest.approx(4 * 0.5)
    costs = simulation.Costs(arrive=0.25, wake=7.0)
    alone = simulation.token_seconds(model, machine, costs, attention=False)
    assert alone == pytest.approx(7 + 4 * 1.0)
    assert simulation.token_seconds(model, machine, costs) == pytest.approx(alone + 3 * 2 * 2 * 0.25)
    column = simulation.token_seconds(model, machine, simulation.Costs(column=1.0))
    assert column == pytest.approx(4 * (32 + 0.5))


def fake_getcpu(number):
    function = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: number)
    return function, ctypes.cast(function, ctypes.c_void_p).value


@kernel(1)
def second_half(words):
    write_int(words, nodes.runs_on_second_half(read_int(words + 8)))


@pytest.mark.parametrize(("processor", "second"), [(0, 0), (63, 0), (64, 1), (127, 1), (500, 0), (-1, 0)])
def test_a_thread_begins_at_the_end_near_its_processor(tmp_path, processor, second):
    files, count = cores([("", 128, 0)])
    files |= {f"sys/devices/system/node/node{n}/cpulist": f"{64 * n}-{64 * n + 63}\n" for n in (0, 1)}
    found = nodes.topology.of_linux(tree(tmp_path, files), frozenset(range(count)), None)
    keep, getcpu = fake_getcpu(processor)
    table = nodes.NodeTable.of(nodes.halves_of(found.nodes), getcpu)
    words = np.array([-1, table.address], np.int64)
    second_half.call(words.ctypes.data)
    assert words[0] == second
    words[:] = -1, 0
    second_half.call(words.ctypes.data)
    assert words[0] == 0
    assert keep


def test_one_node_has_no_halves_and_three_have():
    one, two, three = (frozenset({number}) for number in range(3))
    assert nodes.halves_of(()) is None
    assert nodes.halves_of((one,)) is None
    assert nodes.halves_of((one, two, three)) == nodes.Halves(one, two | three)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are moved on Linux alone")
def test_a_packing_thread_runs_where_the_rows_are_read_and_returns(monkeypatch):
    before, moves = os.sched_getaffinity(0), []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: moves.append((process, set(cpus))))

    def work():
        with nodes.packing_thread(nodes.Halves({0}, {1})) as move:
            for second in (False, False, True, True):
                move(second)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert moves == [(0, {0}), (0, {1}), (0, before)]

    def refused(process, cpus):
        raise OSError("not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    with nodes.packing_thread(nodes.Halves({0}, {1})) as move:
        move(True)
