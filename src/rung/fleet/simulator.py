"""Simulate a fleet: requests of a trace, the router of the real one, and nodes that compute at their rates.

Discrete events: a request that comes, and one that ends on a node. Between two events of a node its rates are shared
equally by what it computes: prompts at ``prefill``, with what else a first token takes there, answers at ``decode``
each and ``decode_sum`` together.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rung.core.value import Value
from rung.fleet.router import Job, Node, Rates, Router

#: Seconds after which the router hears at least what a node has computed: in a fleet every token says so.
_LOOK = 1.0


@dataclass(frozen=True)
class Request(Value):
    """A request of a trace: when it comes in seconds, and its tokens."""

    time: float
    prompt: int
    tokens: int
    owner: str = ""


@dataclass(frozen=True)
class SimulatedNode(Value):
    """A node: its name, answers at once, and rates; ``real`` are those at which it computes, where they differ."""

    name: str
    slots: int
    rates: Rates
    real: Rates | None = None


@dataclass(frozen=True)
class Outcome(Value):
    """The outcome of a trace: seconds, tokens a second, seconds to the first token, and the share of time that nodes
    computed. ``most_waiting`` is the longest queue."""

    seconds: float
    tokens_per_second: float
    first_token_median: float
    first_token_p95: float
    finish_p95: float
    utilization: float
    most_waiting: int


def poisson(rate: float, seconds: float, prompt: int, tokens: int, seed: int = 0) -> list[Request]:
    """Return a trace of so many requests a second, independent of each other; lengths vary by half to both sides."""
    chance, now, found = random.Random(seed), 0.0, []
    while (now := now + chance.expovariate(rate)) < seconds:
        read, write = (max(int(count * chance.uniform(0.5, 1.5)), 1) for count in (prompt, tokens))
        found.append(Request(now, read, write))
    return found


def burst(count: int, prompt: int, tokens: int) -> list[Request]:
    """Return a trace of requests that come at once."""
    return [Request(0.0, prompt, tokens) for _ in range(count)]


@dataclass
class _Running:
    """A request on a node: what is left of its prompt, with its latency in tokens of that, and of its answer."""

    job: Job
    request: Request
    prompt: float
    tokens: float


@dataclass
class _Machine:
    """A node as it computes: what runs, since when, and which of its events is the last that counts."""

    rates: Rates
    running: dict[int, _Running] = field(default_factory=dict)
    since: float = 0.0
    busy: float = 0.0
    version: int = 0

    def advance(self, now: float) -> list[tuple[_Running, int, bool]]:
        """Compute until now; return what each got: whole tokens, and whether its prompt was read meanwhile."""
        seconds, self.since = now - self.since, now
        reading = [each for each in self.running.values() if each.prompt > 0]
        writing = [each for each in self.running.values() if each.prompt <= 0]
        self.busy += seconds if self.running else 0.0
        came = []
        for each in reading:
            each.prompt -= seconds * self._share(reading, writing) * self.rates.prefill / len(reading)
            came.append((each, 0, each.prompt <= 1e-9))
            each.prompt = each.prompt if each.prompt > 1e-9 else 0.0
        for each in writing:
            before = each.tokens
            each.tokens -= seconds * self._decode(reading, writing)
            came.append((each, int(each.request.tokens - each.tokens) - int(each.request.tokens - before), False))
        return came

    def next_event(self) -> float | None:
        """Return in how many seconds a prompt is read or an answer ends, None where nothing runs."""
        reading = [each for each in self.running.values() if each.prompt > 0]
        writing = [each for each in self.running.values() if each.prompt <= 0]
        share = self._share(reading, writing)
        times = [each.prompt * len(reading) / (share * self.rates.prefill) for each in reading]
        times += [max(each.tokens, 0.0) / self._decode(reading, writing) for each in writing]
        return min(times, default=None)

    def _share(self, reading: Sequence[_Running], writing: Sequence[_Running]) -> float:
        """Return the share of the node that reads prompts."""
        return len(reading) / (len(reading) + len(writing)) if reading else 0.0

    def _decode(self, reading: Sequence[_Running], writing: Sequence[_Running]) -> float:
        """Return the tokens a second of one answer."""
        share = 1 - self._share(reading, writing)
        return min(self.rates.decode, share * self.rates.decode_sum / max(len(writing), 1))


class Simulation:
    """A fleet with a clock."""

    def __init__(self, nodes: Iterable[SimulatedNode]) -> None:
        self._router, self._machines = Router(), dict[str, _Machine]()
        for node in nodes:
            self._router.add(Node(node.name, node.slots, node.rates))
            self._machines[node.name] = _Machine(node.real or node.rates)
        self._events: list[tuple[float, int, str, int]] = []
        self._order = itertools.count()
        self._requests: dict[int, Request] = {}
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def run(self, trace: Sequence[Request]) -> Outcome:
        """Return the outcome of a trace. Raises ``ValueError`` for one without requests."""
        if not trace:
            raise ValueError("a trace has requests")
        for number, request in enumerate(trace):
            self._requests[number] = request
            heapq.heappush(self._events, (request.time, next(self._order), "", number))
        now, most_waiting = 0.0, 0
        while self._events:
            now, _, name, number = heapq.heappop(self._events)
            if not name:
                request = self._requests[number]
                self._router.enter(Job(number, request.owner, request.prompt, request.tokens))
            elif number == self._machines[name].version:
                if not self._advance(name, now):
                    continue
            else:
                continue
            self._begin(now)
            most_waiting = max(most_waiting, self._router.waiting)
        return self._outcome(trace, now, most_waiting)

    def _advance(self, name: str, now: float) -> bool:
        """Compute on a node until now, and end what is over; return whether anything is."""
        has_ended = False
        machine, node = self._machines[name], self._router.nodes[name]
        for each, tokens, was_read in machine.advance(now):
            if was_read:
                self._first[each.job.number] = now
            if tokens:
                node.add(each.job, tokens, now)
            if each.prompt <= 0 and each.tokens <= 1e-9:
                del machine.running[each.job.number]
                node.end(each.job, now)
                self._last[each.job.number] = now
                has_ended = True
        self._plan(name, now)
        return has_ended

    def _begin(self, now: float) -> None:
        """Begin what the router says."""
        for job, node in self._router.assign(now):
            machine, request = self._machines[node.name], self._requests[job.number]
            self._advance(node.name, now)
            prompt = request.prompt + machine.rates.latency * machine.rates.prefill
            machine.running[job.number] = _Running(job, request, prompt, float(request.tokens))
            self._plan(node.name, now)

    def _plan(self, name: str, now: float) -> None:
        """Have the next event of a node come."""
        machine = self._machines[name]
        machine.version += 1
        if (seconds := machine.next_event()) is not None:
            heapq.heappush(self._events, (now + min(seconds, _LOOK), next(self._order), name, machine.version))

    def _outcome(self, trace: Sequence[Request], now: float, most_waiting: int) -> Outcome:
        first = sorted(self._first[n] - request.time for n, request in enumerate(trace))
        last = sorted(self._last[n] - request.time for n, request in enumerate(trace))
        seconds = max(now - trace[0].time, 1e-9)
        busy = sum(each.busy for each in self._machines.values()) / (seconds * len(self._machines))
        tokens = sum(request.tokens for request in trace)
        p95 = int(0.95 * (len(trace) - 1))
        return Outcome(seconds, tokens / seconds, first[len(first) // 2], first[p95], last[p95], busy, most_waiting)
