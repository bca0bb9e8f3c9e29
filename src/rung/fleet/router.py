"""Decide which node computes a request, and when: pure, so that the simulator decides as a fleet does.

A request goes to the node where it is predicted to end first, by the node's rates, what is computed there and what
waits for it; a node that has read the same beginning reads the rest only. Where the best node has no free slot the
request waits for it: work stays here, where the next decision knows more, until a slot is free.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rung.core.value import Value

#: Characters of a piece of a prompt by which nodes know that they have read it, and pieces that a node is known for.
_PIECE, _MOST_PIECES = 256, 4096
#: Characters of a token, where nobody has counted.
CHARACTERS = 4
#: Requests of the queue that are looked at, and nodes that one is compared on.
_LOOK_AHEAD, _CANDIDATES = 64, 64
#: Seconds of work and tokens after which a speed is believed, and the share of the new one.
_WINDOW_SECONDS, _WINDOW_TOKENS, _NEW_SHARE = 1.0, 16, 0.5
#: Windows after which a node that gives fewer tokens is believed to be slow.
_SILENT_WINDOWS = 4
#: Speeds that are believed, as a share of the rates that a node said.
_LEAST_SPEED, _MOST_SPEED = 0.02, 8.0


@dataclass(frozen=True)
class Rates(Value):
    """Tokens a second of a node: of prompts, of one answer alone, and of all answers together; and the seconds to the
    first token of a request that are not for reading its prompt."""

    prefill: float
    decode: float
    decode_sum: float
    latency: float = 0.0


@dataclass
class Job:
    """A request: prompt tokens, tokens of each answer at most, and the pieces that its prompt begins with."""

    number: int
    owner: str
    prompt: int
    tokens: int
    answers: int = 1
    pieces: tuple[int, ...] = ()
    #: Nodes that it was lost on.
    lost_on: set[str] = field(default_factory=set)
    #: Tokens that came so far.
    came: int = 0


def pieces_of(text: str) -> tuple[int, ...]:
    """Return a number for each beginning of a text of whole pieces, from the shortest to the longest.

    >>> pieces_of("a" * 600) == pieces_of("a" * 520), len(pieces_of("a" * 600))
    (True, 2)
    """
    found, digest = [], hashlib.blake2b(digest_size=8)
    for start in range(0, len(text) - _PIECE + 1, _PIECE):
        digest.update(text[start : start + _PIECE].encode("utf-8", "surrogatepass"))
        found.append(int.from_bytes(digest.copy().digest(), "little"))
    return tuple(found)


class Node:
    """A node as the router knows it. ``slots`` answers are computed at once; ``speed`` is the share of its rates that
    it was measured at lately."""

    def __init__(self, name: str, slots: int, rates: Rates) -> None:
        self.name, self.slots, self.rates, self.speed = name, slots, rates, 1.0
        self.is_draining = False
        #: How many times its speed was measured by what it computed.
        self.windows = 0
        self.running: dict[int, Job] = {}
        self._pieces: OrderedDict[int, None] = OrderedDict()
        self._since = 0.0
        self._tokens, self._done, self._expected = 0, 0.0, 0.0

    @property
    def free(self) -> int:
        """Return how many more answers it takes now."""
        return 0 if self.is_draining else self.slots - sum(job.answers for job in self.running.values())

    def unread(self, job: Job) -> int:
        """Return the tokens of a prompt that this node would have to read."""
        known = next((n for n in range(len(job.pieces), 0, -1) if job.pieces[n - 1] in self._pieces), 0)
        return max(job.prompt - known * _PIECE // CHARACTERS, 1)

    def work(self, job: Job) -> float:
        """Return the seconds of this node that a request takes beside others."""
        left = max(job.answers * job.tokens - job.came, 1)
        return (self.unread(job) / self.rates.prefill + left / self.rates.decode_sum) / self.speed

    def backlog(self) -> float:
        """Return the seconds of what is computed there now."""
        return sum(self.work(job) for job in self.running.values())

    def finish(self, job: Job, backlog: float) -> float:
        """Return in how many seconds a request is predicted to end there, behind a backlog in seconds."""
        alone = (self.unread(job) / self.rates.prefill + job.tokens / self.rates.decode) / self.speed
        return max(alone, backlog + self.work(job))

    def start(self, job: Job, now: float) -> None:
        """Note a request that is computed there from now on."""
        self.advance(now)
        self.running[job.number] = job
        for piece in job.pieces:
            self._pieces[piece] = None
            self._pieces.move_to_end(piece)
        while len(self._pieces) > _MOST_PIECES:
            self._pieces.popitem(last=False)

    def add(self, job: Job, tokens: int, now: float) -> None:
        """Note tokens that came of a request; the first ones say that its prompt is read."""
        self.advance(now)
        if not job.came:
            self._done += job.prompt / self.rates.prefill
        job.came += tokens
        self._tokens += tokens
        self._done += tokens / self.rates.decode_sum

    def end(self, job: Job, now: float) -> None:
        """Note that a request is computed there no longer."""
        self.advance(now)
        self.running.pop(job.number, None)

    def advance(self, now: float) -> None:
        """Note what should have been computed since the last call, and measure where there is enough of it."""
        streams = sum(job.answers for job in self.running.values())
        if streams:
            share = min(streams * self.rates.decode / self.rates.decode_sum, 1.0)
            self._expected += (now - self._since) * share
        self._since = now
        enough = self._tokens >= _WINDOW_TOKENS or self._expected >= _SILENT_WINDOWS * _WINDOW_SECONDS
        if self._expected >= _WINDOW_SECONDS and enough:
            found = min(max(self._done / self._expected, _LEAST_SPEED), _MOST_SPEED)
            self.speed += _NEW_SHARE * (found - self.speed)
            self.windows += 1
            self._tokens, self._done, self._expected = 0, 0.0, 0.0


class Router:
    """The nodes of one model, and the requests that wait for them. Owners take turns by the tokens that they got."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: dict[str, Node] = {}
        self._listed: list[Node] = []
        self._waiting: dict[str, deque[Job]] = {}
        self._served: dict[str, float] = {}
        self._random = random.Random(seed)

    def add(self, node: Node) -> None:
        """Have a node compute requests from now on."""
        self.remove(node.name)
        self.nodes[node.name] = node
        self._listed.append(node)

    def remove(self, name: str) -> None:
        """Have a node compute nothing more; what it computed is nobody's."""
        if (node := self.nodes.pop(name, None)) is not None:
            self._listed.remove(node)

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        return sum(map(len, self._waiting.values()))

    def enter(self, job: Job, *, first: bool = False) -> None:
        """Have a request wait; ``first`` where a node was lost that had begun with it."""
        if job.owner not in self._waiting:
            least = min((self._served.get(each, 0.0) for each in self._waiting), default=0.0)
            self._served[job.owner] = max(self._served.get(job.owner, 0.0), least)
        queue = self._waiting.setdefault(job.owner, deque())
        if first:
            queue.appendleft(job)
        else:
            queue.append(job)

    def withdraw(self, job: Job) -> None:
        """Have a request wait no longer."""
        queue = self._waiting.get(job.owner, deque())
        if job in queue:
            queue.remove(job)
        if not queue:
            self._waiting.pop(job.owner, None)

    def assign(self, now: float) -> list[tuple[Job, Node]]:
        """Return the requests that begin now, each with its node."""
        begun: list[tuple[Job, Node]] = []
        if not self._waiting:
            return begun
        able = [node for node in self._candidates() if not node.is_draining]
        for node in able:
            node.advance(now)
        free = sum(node.free > 0 for node in able)
        backlog: dict[str, float] = {}
        for job in list(self._in_turn()):
            if not free:
                break
            node = self._best(job, able, backlog)
            if node.free < min(job.answers, node.slots):
                backlog[node.name] += node.work(job)
                continue
            node.start(job, now)
            free -= node.free <= 0
            backlog.pop(node.name, None)
            self.withdraw(job)
            self._served[job.owner] = self._served.get(job.owner, 0.0) + job.prompt + job.tokens * job.answers
            begun.append((job, node))
        return begun

    def _candidates(self) -> Sequence[Node]:
        """Return the nodes that requests are compared on now: all, or a sample of very many."""
        if len(self._listed) <= _CANDIDATES:
            return self._listed
        return self._random.sample(self._listed, _CANDIDATES)

    def _in_turn(self) -> Iterator[Job]:
        """Yield the requests that come next, with the owner first who got least."""
        served, taken = dict(self._served), dict.fromkeys(self._waiting, 0)
        for _ in range(min(_LOOK_AHEAD, self.waiting)):
            owner = min((o for o, n in taken.items() if n < len(self._waiting[o])), key=lambda each: served[each])
            job = self._waiting[owner][taken[owner]]
            taken[owner] += 1
            served[owner] += job.prompt + job.tokens * job.answers
            yield job

    def _best(self, job: Job, able: Sequence[Node], backlog: dict[str, float]) -> Node:
        """Return the node where a request would end first; one that was lost with it only where there is no other."""
        nodes = [node for node in able if node.name not in job.lost_on] or able
        for node in nodes:
            if node.name not in backlog:
                backlog[node.name] = node.backlog()
        return min(nodes, key=lambda each: each.finish(job, backlog[each.name]))

    def positions(self) -> dict[int, int]:
        """Return how many requests come before each that waits, by number."""
        return {job.number: position for position, job in enumerate(self._in_turn(), 1)}
