"""How the steps of a token spread over the cores of processors that are not here: a simulation of their chunks.

    python benchmarks/cpu_chunks.py [--seconds 1] [--costs CHUNK BARRIER WAKE COLUMN] [--table]  # --table: in Markdown

The chunks are those that rung cuts (``rung.kernels.cpu.thread_pool``). Measured here, with two threads: what taking a
chunk and arriving at a barrier cost, both of which one thread does at a time, and what waking one more thread for a
token costs; with one thread: how fast it multiplies weights from memory, and preparing a column of activations, which
each thread does for itself. The rest is arithmetic. Bandwidths of the machines are parameters (``MACHINES``): threads
that read at a time share it by their speeds, on two nodes that of each. Attention counts as its two barriers.

A token of the 0.3B's linears is measured with one and two threads, and predicted for two from the costs, the speed of
one and the bytes that two read a second. The last columns cut each step into six equal chunks a thread.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Costs:
    """Seconds of taking a chunk, arriving at a barrier, waking a thread, and preparing a column of activations."""

    take: float = 0.0
    arrive: float = 0.0
    wake: float = 0.0
    column: float = 0.0


@dataclass(frozen=True)
class Machine:
    """A processor by the speeds of its threads, of which the fastest is 1, and the bytes a second that all read.

    ``core``: bytes a second that a thread of speed 1 multiplies. ``far``: the share of its speed that is left for
    weights on the other one of two nodes; 1 for one node.
    """

    speeds: tuple[float, ...]
    bandwidth: float = math.inf
    core: float = 12e9
    far: float = 1.0

    @property
    def rate(self) -> float:
        """Bytes a second that it multiplies where nothing is lost."""
        return min(self.core * sum(self.speeds), self.bandwidth)


#: Bandwidths are those of the memory (0.68 of it is read, see docs/cpus.md).
MACHINES = {
    "1 core": Machine((1.0,), 17e9),
    "2 cores": Machine((1.0,) * 2, 26e9),
    "2 cores, one shared": Machine((1.0, 0.4), 26e9),
    "4 cores (Pi 5)": Machine((1.0,) * 4, 12e9, 5e9),
    "8 cores (Ryzen 7 5800X)": Machine((1.0,) * 8, 35e9),
    "4 + 4 (M1)": Machine((1.0,) * 4 + (0.3,) * 4, 46e9),
    "1 + 3 + 4 (phone)": Machine((1.0,) + (0.85,) * 3 + (0.3,) * 4, 52e9, 10e9),
    "8 + 8 (i7-12900)": Machine((1.0,) * 8 + (0.55,) * 8, 52e9),
    "16 cores (Ryzen 9 7950X)": Machine((1.0,) * 16, 56e9),
    "32 cores (8 channels of DDR4)": Machine((1.0,) * 32, 139e9),
    "64 cores (8 channels of DDR4)": Machine((1.0,) * 64, 139e9),
    "64 cores (12 channels of DDR5)": Machine((1.0,) * 64, 313e9),
    "2 nodes of 32 cores": Machine((1.0,) * 64, 278e9, far=0.6),
}


@dataclass(frozen=True)
class Step:
    """Groups of 16 rows of the weights of a step, the columns of each, and how many weights a chunk of one covers."""

    groups: tuple[int, ...]
    columns: int
    together: int = 1

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of rows in q4_0, which takes 18 bytes for 32 columns."""
        return self.together * 16 * self.columns * 18 // 32

    @property
    def bytes(self) -> int:
        """Bytes of all groups."""
        return sum(self.groups) * self.group_bytes


@dataclass(frozen=True)
class Model:
    """A model in q4_0 by its layers, and their steps: q, k and v; output; gate and up; down. Then its head."""

    layers: int
    steps: tuple[Step, ...]
    head: Step

    @property
    def bytes(self) -> int:
        """Bytes of a token."""
        return self.layers * sum(step.bytes for step in self.steps) + self.head.bytes


def _model(layers: int, hidden: int, keys: int, wide: int, vocabulary: int) -> Model:
    """Return a model by the columns of its states, keys and gates."""
    q = hidden // 16
    inputs, output = Step((q, keys // 16, keys // 16), hidden), Step((q,), hidden)
    return Model(
        layers, (inputs, output, Step((wide // 16,), hidden, 2), Step((q,), wide)), Step((vocabulary // 16,), hidden)
    )


MODELS = {"0.3B": _model(24, 1024, 512, 2816, 32000), "8B": _model(32, 4096, 1024, 14336, 128256)}
_PROCESSORS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
#: What is measured; a model of less than so many bytes is read from the third cache.
MEASURED, _CACHE = {"30M": _model(8, 512, 256, 1536, 8000), "0.3B": MODELS["0.3B"]}, 32 << 20
#: Barriers of attention in a layer: turning and storing keys and values, then sums of values.
_OF_ATTENTION = 2


@dataclass
class _Memory:
    """Share a memory among its readers: ``clock`` goes on at the share of their speed that its limit leaves them."""

    limit: float
    clock: float = 0.0
    speed: float = 0.0
    readers: list[tuple[float, int, float]] = field(default_factory=list)  # end by the clock, thread, speed

    @property
    def scale(self) -> float:
        return min(1.0, self.limit / self.speed) if self.readers else 1.0

    def start(self, thread: int, speed: float, groups: float) -> None:
        heapq.heappush(self.readers, (self.clock + groups / speed, thread, speed))
        self.speed += speed

    def end(self) -> int:
        _, thread, speed = heapq.heappop(self.readers)
        self.speed = self.speed - speed if self.readers else 0.0
        return thread

    def next(self) -> float:
        """Seconds until the first reader is done."""
        return max(0.0, self.readers[0][0] - self.clock) / self.scale if self.readers else math.inf


def simulate(
    chunks: Sequence[Sequence[int]],
    speeds: Sequence[float],
    costs: Costs = Costs(),
    limit: float = math.inf,
    far: float = 1.0,
    ready: Sequence[float] | None = None,
) -> float:
    """Return the seconds until the last thread has arrived at the barrier.

    ``chunks``: (weight, first, last) in the order in which they are cut. ``speeds`` and ``limit`` are groups a second,
    ``ready`` says when each thread comes first. ``far`` below 1: groups of the other half of two nodes are read at that
    share of the speed; the second half of the threads begins at the end of the chunks.
    """
    nodes = 2 if far < 1 else 1
    memories, middle = [_Memory(limit / nodes) for _ in range(nodes)], _middle(chunks)
    coming = sorted((at, thread) for thread, at in enumerate(ready or [0.0] * len(speeds)))
    starting: list[tuple[float, int, int]] = []
    first, last, now, counter, arrived = 0, len(chunks), 0.0, 0.0, 0.0
    while coming or starting or any(memory.readers for memory in memories):
        times = [coming[0][0] if coming else math.inf, starting[0][0] if starting else math.inf]
        times += [now + memory.next() for memory in memories]
        what, before = times.index(min(times)), now
        now = max(now, times[what])
        _pass(memories, now - before)
        if what == 0:
            _, thread = heapq.heappop(coming)
            if first == last:
                arrived = max(arrived, now) + costs.arrive
                continue
            from_end = nodes == 2 and thread >= len(speeds) // 2
            counter = max(counter, now) + costs.take
            heapq.heappush(starting, (counter, thread, last - 1 if from_end else first))
            first, last = (first, last - 1) if from_end else (first + 1, last)
        elif what == 1:
            _, thread, number = heapq.heappop(starting)
            side, near = _side(number >= middle, thread >= len(speeds) // 2) if nodes == 2 else (0, True)
            memories[side].start(thread, speeds[thread] * (1.0 if near else far), chunks[number][2] - chunks[number][1])
        else:
            heapq.heappush(coming, (now, memories[what - 2].end()))
    return arrived


def _pass(memories: Sequence[_Memory], seconds: float) -> None:
    for memory in memories:
        memory.clock += seconds * memory.scale


def _side(chunk: bool, thread: bool) -> tuple[int, bool]:
    """Return the node of two on which a chunk lies, and whether the thread is there, too; true is the second one."""
    return int(chunk), chunk == thread


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


def step_seconds(step: Step, machine: Machine, costs: Costs, even: bool = False) -> float:
    """Return the seconds of a step with its barrier."""
    from rung.kernels.cpu.thread_pool import cut

    threads = len(machine.speeds)
    chunks = equal(step.groups, threads) if even else cut(step.groups, threads, machine.far < 1).tolist()
    speeds = [speed * machine.core / step.group_bytes for speed in machine.speeds]
    ready = [costs.column * step.columns / speed for speed in machine.speeds]
    return simulate(chunks, speeds, costs, machine.bandwidth / step.group_bytes, machine.far, ready)


def token_seconds(model: Model, machine: Machine, costs: Costs, even: bool = False, attention: bool = True) -> float:
    """Return the seconds of a token of a model; of attention its barriers count, or nothing."""
    threads = len(machine.speeds)
    layer = sum(step_seconds(step, machine, costs, even) for step in model.steps)
    barriers = _OF_ATTENTION * threads * costs.arrive if attention else 0.0
    head = step_seconds(model.head, machine, costs, even)
    return (threads - 1) * costs.wake + model.layers * (layer + barriers) + head


def share(model: str, machine: Machine, costs: Costs = Costs(), even: bool = False) -> float:
    """Return the share of the machine's speed that is left for a token of a model, 1 for all."""
    return MODELS[model].bytes / machine.rate / token_seconds(MODELS[model], machine, costs, even)


def _best(call: Callable[[], None], seconds: float) -> float:
    """Return the seconds of the quickest of the calls that fit into that time, at least five."""
    call()
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


@contextmanager
def _team(threads: int) -> Iterator[Any]:
    """A team whose threads, the calling one among them, keep to a processor each in the block where the system allows
    it: beside other programs both would run on one."""
    from rung.kernels.cpu.thread_pool import Team

    before = set(threading.enumerate())
    team = Team(threads)
    mine = [threading.current_thread(), *(each for each in threading.enumerate() if each not in before)]
    if hasattr(os, "sched_setaffinity"):
        for thread, processor in zip(mine, itertools.cycle(sorted(_PROCESSORS)), strict=False):
            os.sched_setaffinity(thread.native_id or 0, {processor})
    try:
        yield team
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, _PROCESSORS)


def _clock() -> tuple[Any, float]:
    """Return the step that keeps the counter of the processor's clock at an address, thread 0's, and behind it how many
    threads run, and the ticks of a second."""
    from llvmlite import ir

    from rung.kernels.cpu.compiled import kernel
    from rung.kernels.isa.emit import I64, call
    from rung.kernels.isa.generic import read_int, write_int
    from rung.kernels.isa.vector import INT, instruction

    @instruction(INT)
    def ticks(b: ir.IRBuilder) -> ir.Value:
        return call(b, "llvm.readcyclecounter", I64, [])

    @kernel(3)
    def keep(words, thread, threads):
        if thread == 0:
            write_int(read_int(words + 8), ticks())
            write_int(read_int(words + 8) + 8, threads)

    at = np.zeros(2, np.int64)
    words, stamps = np.array([0, at.ctypes.data], np.int64), []
    for _ in range(2):
        keep.call(words.ctypes.data, 0, 1)
        stamps.append((time.perf_counter(), int(at[0])))
        time.sleep(0.2)
    return keep, (stamps[1][1] - stamps[0][1]) / (stamps[1][0] - stamps[0][0])


def _quickest(team: Any, steps: list[tuple[int, Any]], seconds: float, *keep: Any) -> float:
    """Return the seconds of the quickest of many turns of these steps, in compiled code: the processor's clock tells
    turns apart in which nothing else had a processor."""
    from rung.kernels.cpu.thread_pool import Program

    clock, ticks = _clock()
    turns = max(2, min(512, 4096 // len(steps)))
    stamps, table = np.zeros((turns + 1, 2), np.int64), []
    for turn in range(turns + 1):
        table += steps if turn else []
        table.append((clock.address, np.array([0, stamps[turn:].ctypes.data], np.int64)))
    program, best = Program.of(table, *keep), math.inf
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        team.run(program)
        if stamps[-1, 1] == team.threads:  # all of them have come
            best = min(best, float(np.diff(stamps[:, 0]).min()) / ticks)
    return best


def measured_steps(threads: int, seconds: float) -> tuple[float, float, float]:
    """Return seconds that taking a chunk, ending a step and a run of one step take here, on that many threads."""
    from rung.kernels.cpu.compiled import kernel
    from rung.kernels.cpu.thread_pool import Program, take_chunk
    from rung.kernels.isa.generic import read_int

    @kernel(3)
    def empty(words, thread, threads):
        chunks = read_int(words + 8)
        while take_chunk(words, chunks, False) < chunks:
            pass

    with _team(threads) as team:

        def run(chunks: int) -> float:
            steps = [(empty.address, np.array([0, chunks], np.int64)) for _ in range(8)]
            return _quickest(team, steps, seconds / 3) / 9  # the clock's own step is one too

        without, with_chunks = run(0), run(64)
        program = Program.of([(empty.address, np.zeros(2, np.int64))])
        one = _best(lambda: team.run(program), seconds / 3)
    return 9 / 8 * max(with_chunks - without, 0.0) / 64, without, one


def measured_column(seconds: float) -> float:
    """Return seconds a column of adding to the hidden state, its norm, and activations in bytes."""
    from rung.kernels.cpu.compiled import kernel
    from rung.kernels.cpu.decode.elementwise import add_to, norm
    from rung.kernels.cpu.decode.step_program import floats
    from rung.kernels.cpu.gemm.microkernel import panel_unit_bytes
    from rung.kernels.cpu.gemm.product import quantize
    from rung.kernels.isa.generic import read_float

    @kernel(5)
    def prepare(state, weight, scratch, columns, epsilon):
        add_to(state, scratch, columns)
        norm(state, weight, scratch, columns, read_float(epsilon))

    columns, turns = 4096, 64
    state, weight, scratch, epsilon = floats(columns), floats(columns), floats(columns), np.full(1, 1e-5, np.float32)
    panel = np.zeros(columns // 32 * panel_unit_bytes(1, 1) + 64, np.uint8)
    addresses = [each.ctypes.data for each in (state, weight, scratch)]
    state[:], weight[:] = 1, 1

    def call() -> None:
        for _ in range(turns):
            prepare.call(*addresses, columns, epsilon.ctypes.data)
            quantize("f32").call(addresses[2], 0, 1, panel.ctypes.data, 1, 1, 8, 0, columns // 32, 0)

    return _best(call, seconds) / (turns * columns)


def measured_costs(seconds: float) -> Costs:
    """Measure the costs of two threads."""
    alone, together = measured_steps(1, seconds), measured_steps(2, seconds)
    return Costs(together[0], together[1] / 2, max(together[2] - alone[2], 0.0), measured_column(seconds))


def token_program(model: Model, threads: int) -> Any:
    """Return the program of the linears of a token, with weights in q4_0 of their own for each."""
    from rung.kernels.cpu.decode import step
    from rung.kernels.cpu.decode.step_program import After, Before, Builder, HeadShape, Piece, Rows, floats

    hidden, wide = model.steps[0].columns, model.steps[3].columns
    rows = [16 * sum(each.groups) for each in model.steps]
    memory = [floats(size) for size in (hidden, hidden, hidden, rows[0], 2 * wide, 16 * sum(model.head.groups))]
    states, normed, added, queries, gates, logits = (Rows(each.ctypes.data, 4 * each.size) for each in memory)
    norm, count = floats(hidden), 7 * model.layers + 1
    adapters = step.AdapterTable(count, 1)
    shape = HeadShape(1, 1, 64, 1.0, 0.0, 1e-5)
    builder = Builder(1, hidden, threads, shape, states, normed, floats(threads * 64).reshape(threads, -1), adapters)
    builder.hold(memory)
    numbers = iter(range(count))

    def piece(out: int, columns: int, result: Rows) -> Piece:
        return Piece(_weight(out, columns, threads), None, result, next(numbers))

    for layer in range(model.layers):
        first = 0
        inputs = []
        for groups in model.steps[0].groups:
            inputs.append(piece(16 * groups, hidden, queries.at(first)))
            first += 16 * groups
        builder.linear(inputs, added, Before(step.ADD if layer else step.START, norm))
        builder.linear([piece(hidden, hidden, added)], queries, Before(step.PLAIN))
        gate, up = piece(wide, hidden, gates), piece(wide, hidden, gates.at(wide))
        builder.linear([gate], added, Before(step.ADD, norm), After(step.SILU, up))
        builder.linear([piece(hidden, wide, added)], gates, Before(step.PLAIN))
    builder.linear([piece(16 * sum(model.head.groups), hidden, logits)], added, Before(step.ADD, norm))
    return builder.program()


def _weight(rows: int, columns: int, threads: int) -> Any:
    """Return a packed weight in q4_0 of 16 random rows, again and again."""
    from rung import formats
    from rung.formats import Encoded
    from rung.kernels.cpu.pack.packing import pack

    q4_0 = formats.get("q4_0")
    few = formats.encode(np.random.default_rng(1).standard_normal((16, columns), dtype=np.float32), q4_0)
    parts = {key: np.tile(part, (rows // 16, 1) if part.ndim == 2 else rows // 16) for key, part in few.parts.items()}
    return pack(Encoded(q4_0, (rows, columns), parts), threads)


def measured_token(model: Model, threads: int, seconds: float) -> float:
    """Return the seconds of a token's linears here, on that many threads that are awake."""
    program = token_program(model, threads)
    words = {each.ctypes.data: each for each in program.keep if isinstance(each, np.ndarray)}
    steps = [(function, words[arguments]) for function, arguments in program.steps.tolist()]
    with _team(threads) as team:
        return _quickest(team, steps, seconds, program)


def predicted_token(model: Model, one: float, costs: Costs, bandwidth: float) -> float:
    """Return the seconds of a token's linears on two threads, from those of one and the bytes that two read a
    second."""
    columns = model.layers * sum(step.columns for step in model.steps) + model.head.columns
    core = model.bytes / (one - costs.column * columns)
    awake = replace(costs, wake=0.0)
    return token_seconds(model, Machine((1.0, 1.0), bandwidth, core), awake, attention=False)


def print_costs(costs: Costs, seconds: float) -> None:
    """Print what was measured, and a token on two threads beside its prediction."""
    from rung.kernels.cpu.thread_pool import rates

    print(f"a chunk {1e9 * costs.take:.0f} ns, arriving at a barrier {1e9 * costs.arrive:.0f} ns, ", end="")
    print(f"waking a thread {1e6 * costs.wake:.1f} µs, 1,024 columns {1e6 * 1024 * costs.column:.2f} µs")
    read = rates([1, 2])
    print(f"read: {read['1'] / 1e9:.1f} GB/s by one thread, {read['2'] / 1e9:.1f} by two")
    for name, model in MEASURED.items():
        one, two = (measured_token(model, threads, seconds) for threads in (1, 2))
        limit = math.inf if model.bytes < _CACHE else read["2"]
        guess = predicted_token(model, one, costs, limit)
        print(f"a token of the {name}: {1e3 * one:.3f} ms by one, {1e3 * two:.3f} by two, predicted {1e3 * guess:.3f}")
    print()


def print_machines(costs: Costs, table: bool) -> None:
    """Print a row for each processor: tokens a second of each model, the share of what the machine could, and the same
    of equal chunks."""
    between, edge = (" | ", "|") if table else ("  ", "")
    titles = ["tokens/s", "share", "equal"]
    head = [f"{model} {title}" for model in MODELS for title in titles]
    print(f"{edge}{'':31}{between}{between.join(f'{each:>13}' for each in head)} {edge}")
    if table:
        print("|---" * (1 + len(head)) + "|")
    for name, machine in MACHINES.items():
        cells = []
        for model in MODELS:
            now, even = (share(model, machine, costs, each) for each in (False, True))
            rate = now * machine.rate / MODELS[model].bytes
            cells += [f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}", f"{now:.0%}", f"{even:.0%}"]
        print(f"{edge}{name:31}{between}{between.join(f'{each:>13}' for each in cells)} {edge}")


def main() -> None:
    """Measure the costs, and print a row for each processor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument(
        "--costs", type=float, nargs=4, metavar=("CHUNK", "BARRIER", "WAKE", "COLUMN"), help="in ns, not measured"
    )
    parser.add_argument("--table", action="store_true", help="in Markdown")
    options = parser.parse_args()
    if options.costs:
        costs = Costs(*(1e-9 * each for each in options.costs))
    else:
        costs = measured_costs(options.seconds)
        print_costs(costs, options.seconds)
    print_machines(costs, options.table)


if __name__ == "__main__":
    main()
