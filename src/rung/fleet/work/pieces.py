"""Work in pieces for the nodes of a fleet, which take the next piece when they have done one: ``rung quantize --fleet``
encodes tensors so, ``rung explain --jsonl --fleet`` explains rows, ``rung compare --fleet`` measures formats."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from rung.conversion import tensor_pieces
from rung.conversion.tensor_pieces import Done, Piece
from rung.core.errors import RungError
from rung.fleet.deployments import actor_on, encoder_options
from rung.fleet.messages import CLASS_LABEL
from rung.fleet.weights import FileSource, ModelFile
from rung.formats import Encoded

#: Pieces that a node has unless somebody says otherwise: one that it computes, and one that is on its way.
_EACH = 2
#: Seconds between two looks which nodes are there, and in which the first one has to be.
_LOOK, _NODE_SECONDS = 2.0, 60.0
#: Rows to a piece and their characters at most, unless one has more; and pieces that are done before one that is not.
_ROWS, _CHARACTERS, _MOST_DONE = 16, 2**20, 256
#: Seconds that a node is to take for what it gets to encode at once, and bytes of that at most.
_GROUP_SECONDS, _MOST_GROUP = 0.15, 8 << 20
#: The share of what was measured before in how fast a node is, and how many times what a piece was to take it may take
#: before its node is believed to hang.
_KEPT, _OVERDUE = 0.7, 3.0
#: Seconds that an encoder stays that nobody needs, seconds between two looks at it, and resident bytes above which it
#: does not stay.
_IDLE_SECONDS, _IDLE_LOOK, _IDLE_BYTES = 600.0, 2.0, 512 << 20
#: Seconds between two times that a command says that it needs its encoders, and for which they believe it: longer than
#: a machine with other work stops a command.
_HOLD_LOOK, _HOLD_SECONDS = 5.0, 60.0
#: Seconds in which encoders hear that a command has ended.
_END_SECONDS = 0.5
#: Times that an actor may end on a node that is there, and has done nothing between, before the node is called lost.
_ENDS = 3
P = TypeVar("P")
#: A row of a file: its number and its text.
Row: TypeAlias = tuple[int, str]


class Nodes(Generic[P]):
    """The nodes that compute, each with an actor of ``kind``, whose ``do`` takes a piece; ``arguments`` make it.

    What was on a node that is lost goes to others. A node has ``each`` pieces at once. With ``stays``, which returns
    Ray's name and namespace for a node, the actors stay when the command has ended, for the next one, as long as they
    choose; one that has ended is begun again. With ``size``, what a piece counts, a node that has nothing to do at the
    end computes, too, what is under way on a slower one: the first to have it counts.
    """

    def __init__(
        self,
        kind: type,
        arguments: Sequence[Any],
        on_note: Callable[[str], None],
        each: int = _EACH,
        stays: Callable[[str], dict[str, str]] | None = None,
        size: Callable[[P], int] | None = None,
    ) -> None:
        self._kind, self._arguments, self._on_note, self._each = kind, arguments, on_note, each
        self._stays, self._size = stays, size
        self._names: dict[str, str] = {}
        self._actors: dict[str, Any] = {}
        self._under_way: dict[Any, _UnderWay[P]] = {}
        self._speeds: dict[str, float] = {}
        #: Sizes that a node did, the later ones count more, and seconds of them; and when it did the last one.
        self._lately: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}
        self._again: list[P] = []
        self._looked = 0.0
        #: Times that actors ended since a node did a piece.
        self._ends: Counter[str] = Counter()

    @property
    def actors(self) -> list[Any]:
        """Return the actors of the nodes that are there."""
        return list(self._actors.values())

    def begin(self, nothing: P) -> None:
        """Have actors begin on the nodes that are there, and be connected to: each gets a piece that is empty. Raises
        ``RungError`` where there is none for a while."""
        self._look()
        for actor in self._actors.values():
            actor.do.remote(nothing)

    def done(self, take: Callable[[float], P | None]) -> Iterator[tuple[str, P, Any]]:
        """Yield the name of a node, a piece, and what came of it, as they come.

        ``take`` returns the next piece for a node that is so fast (sizes a second, 0.0 where nothing is known); None
        where there is none, or it is to wait for what is under way. Raises ``RungError``, and what an actor raises.
        """
        while True:
            self._look()
            self._give(take)
            if not self._under_way:
                return
            ready, _ = ray.wait(list(self._under_way), num_returns=1, timeout=_LOOK)
            for each in ready:
                task = self._under_way.pop(each)
                try:
                    found = ray.get(each)
                except RayTaskError:
                    raise  # another node would raise it, too
                except RayError:
                    self._lose(task)
                    continue
                self._measure(task)
                self._ends.pop(task.node, None)
                for copy in [ref for ref, other in self._under_way.items() if other.piece is task.piece]:
                    del self._under_way[copy]
                yield self._names[task.node], task.piece, found

    def _measure(self, task: _UnderWay[P]) -> None:
        """Note how fast a node was."""
        now, before = time.monotonic(), self._last.get(task.node, 0.0)
        if self._size is not None:
            done, seconds = self._lately.get(task.node, (0.0, 0.0))
            done = _KEPT * done + self._size(task.piece)
            seconds = _KEPT * seconds + now - max(task.since, before)
            self._lately[task.node] = done, seconds
            self._speeds[task.node] = done / max(seconds, 1e-6)
        self._last[task.node] = now

    def _lose(self, task: _UnderWay[P]) -> None:
        """Note that a node is lost, or that its actor has ended, which is begun again: others get what it had."""
        if all(other.piece is not task.piece for other in self._under_way.values()):
            self._again.append(task.piece)
        if self._actors.get(task.node) is not task.actor:
            return
        del self._actors[task.node]
        self._ends[task.node] += 1
        is_there = any(each["NodeID"] == task.node and each["Alive"] for each in ray.nodes())
        if self._stays is not None and is_there and self._ends[task.node] < _ENDS:
            self._looked = 0.0
        else:
            self._on_note(f"{self._names[task.node]} is lost; others compute what it had.")

    def _look(self) -> None:
        """Have an actor on each node that computes. Raises ``RungError`` where there is none for a while."""
        until = time.monotonic() + _NODE_SECONDS
        while time.monotonic() - self._looked > _LOOK or not self._actors:
            self._looked = time.monotonic()
            alive = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
            for node, about in alive.items():
                if node not in self._actors and about["Labels"].get(CLASS_LABEL):
                    self._names[node] = str(about["NodeName"])
                    self._actors[node] = self._actor_on(node)
            if not self._actors:
                if self._looked > until:
                    raise RungError("No node of the fleet computes.", code="fleet-no-node")
                time.sleep(_LOOK / 4)

    def _actor_on(self, node: str) -> Any:
        """Return the actor on a node: the one that stayed there, or a new one."""
        if self._stays is None:
            return actor_on(node, self._kind, *self._arguments)
        options = {**self._stays(node), "lifetime": "detached", "get_if_exists": True}
        return actor_on(node, self._kind, *self._arguments, **options)

    def _give(self, take: Callable[[float], P | None]) -> None:
        """Give each node what it has room for, the ones with least first."""
        busy = dict.fromkeys(self._actors, 0)
        for task in self._under_way.values():
            busy[task.node] = busy.get(task.node, 0) + 1
        while True:
            node = min(self._actors, key=lambda each: (busy[each], -self._speeds.get(each, 0.0)))
            if busy[node] >= self._each:
                return
            piece = self._again.pop() if self._again else take(self._speeds.get(node, 0.0))
            if piece is None and self._size is not None and not busy[node]:
                piece = self._of_slower(node)
            if piece is None:
                return
            actor = self._actors[node]
            self._under_way[actor.do.remote(piece)] = _UnderWay(node, piece, time.monotonic(), actor)
            busy[node] += 1

    def _of_slower(self, node: str) -> P | None:
        """Return the piece under way that is predicted to end last, where a node would have it earlier; none that two
        nodes have."""
        assert self._size is not None
        now, ends, queued = time.monotonic(), list[tuple[float, P]](), dict[str, float]()
        holders = Counter(id(task.piece) for task in self._under_way.values())
        for task in self._under_way.values():
            own = self._size(task.piece) / (self._speeds.get(task.node) or 1e-9)
            queued[task.node] = queued.get(task.node, 0.0) + own
            if holders[id(task.piece)] == 1:
                is_late = now - task.since > _OVERDUE * queued[task.node]
                ends.append((math.inf if is_late else queued[task.node], task.piece))
        end, piece = max(ends, key=lambda each: each[0], default=(0.0, None))
        speed = self._speeds.get(node, 0.0)
        return piece if piece is not None and speed and self._size(piece) / speed < end else None


@dataclass(frozen=True)
class _UnderWay(Generic[P]):
    """A piece that the actor of a node has since then (seconds of the monotonic clock)."""

    node: str
    piece: P
    since: float
    actor: Any


def source_of(files: Sequence[ModelFile]) -> Any:
    """Return an actor on this machine of which nodes fetch these files."""
    return actor_on(ray.get_runtime_context().get_node_id(), FileSource, files)


class Encoder:
    """Encode pieces on a node; an actor that stays for the next command. It ends when nobody needs it for a while, and
    where it takes much memory as soon as the commands that had it have ended."""

    def __init__(self) -> None:
        #: Formats whose compiled encoders were right at a level of CPU instructions, and those whose were not or could
        #: not be checked, by command: the next one checks them again.
        self._proven, self._level = set[str](), ""
        self._refused: dict[str, set[str]] = {}
        #: Until when commands need this process, and when one did last (seconds of the monotonic clock).
        self._leases: dict[str, float] = {}
        self._lock, self._last = threading.Lock(), time.monotonic()
        threading.Thread(target=self._end_idle, daemon=True, name="idle").start()

    def hold(self, command: str, seconds: float = _HOLD_SECONDS) -> None:
        """Stay for a command, which says so again before that many seconds are over; 0.0 where it has ended."""
        with self._lock:
            self._last = time.monotonic()
            self._leases[command] = self._last + seconds
            if not seconds:
                self._refused.pop(command, None)

    def rest(self) -> float:
        """Return for how many seconds no command has had this encoder."""
        now = time.monotonic()
        self._leases = {command: until for command, until in self._leases.items() if until > now}
        return 0.0 if self._leases else now - self._last

    def _end_idle(self) -> None:
        """End this process when it is not needed any more."""
        from rung.engine import planning

        while True:
            time.sleep(_IDLE_LOOK)
            with self._lock:
                rest = self.rest()
                if rest > _IDLE_SECONDS or (rest > _IDLE_LOOK and planning.resident_memory() > _IDLE_BYTES):
                    os._exit(0)  # Ray has no word for an actor that ends itself between two calls

    def do(self, order: Order) -> Encodings | tuple[str, list[str], list[str], str]:
        """Return pieces in their formats, or the cause, facts, ways out and code of a ``RungError``."""
        from rung import formats
        from rung.engine import planning

        with self._lock:
            try:
                notes = self._prove(order)
                compiled = frozenset(formats.get(name) for name in order.compiled if name in self._proven)
                threads = planning.compute_threads(None)
                return Encodings([tensor_pieces.encode(piece, compiled, threads) for piece in order.pieces], notes)
            except RungError as error:
                return error.cause, list(error.facts), list(error.ways_out), error.code
            finally:
                self._last = time.monotonic()

    def _prove(self, order: Order) -> list[str]:
        """Check the compiled encoders of an order that are not checked at this process' level of CPU instructions, once
        a command; return what there is to say of them."""
        from rung import formats
        from rung.kernels.cpu import target
        from rung.run.self_check import encoders

        notes: list[str] = []
        refused = self._refused.setdefault(order.command, set())
        while True:
            if self._level != (level := target.level().name):
                self._proven, self._level = set(), level
            missing = [name for name in order.compiled if name not in self._proven | refused]
            if not missing:
                return notes
            proven = {fmt.name for fmt in encoders.prove(map(formats.get, missing), notes.append)}
            refused |= set(missing) - proven
            if self._level == target.level().name:  # else all are checked again at the lower one
                self._proven |= proven


@dataclass(frozen=True)
class Order:
    """Pieces that a node is to encode for a command, and names of the formats for which it is worth to load compiled
    encoders."""

    command: str
    pieces: list[Piece]
    compiled: list[str]

    @property
    def size(self) -> int:
        """Return the bytes of the pieces."""
        return sum(piece.before.nbytes for piece in self.pieces)


@dataclass(frozen=True)
class Encodings:
    """Pieces that an encoder did, and what there is to say of its compiled encoders."""

    done: list[Done]
    notes: list[str]


class Encoders:
    """The nodes that encode. Called with pieces it yields them done. Encoders begin at once on nodes that have none.

    ``compiled`` are names of the formats for which it is worth to load compiled encoders. ``counts`` says how many
    pieces each node did, by its name. A node gets as many at once as it encodes in a moment. They stay for this command
    until ``end``.
    """

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._nodes = Nodes[Order](Encoder, [], on_note, stays=encoder_options, size=lambda order: order.size)
        self._command, self._on_note, self._ended = uuid.uuid4().hex, on_note, threading.Event()
        self.compiled: list[str] = []
        self.counts: dict[str, int] = {}
        self._nodes.begin(Order(self._command, [], []))
        self._holding = threading.Thread(target=self._hold, daemon=True, name="encoders")
        self._holding.start()

    def _hold(self) -> None:
        """Have the encoders stay, whatever this command does meanwhile."""
        while True:
            for actor in self._nodes.actors:
                actor.hold.remote(self._command)
            if self._ended.wait(_HOLD_LOOK):
                return

    def end(self) -> None:
        """Say to the encoders that this command has ended."""
        self._ended.set()
        self._holding.join()
        said = [actor.hold.remote(self._command, 0.0) for actor in self._nodes.actors]
        if said:
            ray.wait(said, num_returns=len(said), timeout=_END_SECONDS)  # else Ray is left before it is sent

    def __call__(self, source: Iterator[Piece]) -> Iterator[tuple[Piece, Done]]:
        """Yield pieces as they are done. Raises ``RungError``."""

        def take(speed: float) -> Order | None:
            left, pieces = min(speed * _GROUP_SECONDS, _MOST_GROUP), list[Piece]()
            for piece in source:
                pieces.append(piece)
                left -= piece.before.nbytes
                if left <= 0:
                    break
            return Order(self._command, pieces, self.compiled) if pieces else None

        for name, order, found in self._nodes.done(take):
            if isinstance(found, tuple):
                cause, facts, ways_out, code = found
                raise RungError(cause, facts, ways_out, code=code)
            for note in found.notes:
                self._on_note(f"{name}: {note}")
            self.counts[name] = self.counts.get(name, 0) + len(found.done)
            for piece, done in zip(order.pieces, found.done, strict=True):
                yield piece, Done(Encoded(piece.format, done.after.shape, done.after.parts), done.lost)


class Answerer:
    """Call a function, which a module has, with rows on a node; an actor."""

    def __init__(self, function: Callable[[Row], str]) -> None:
        self._function = function

    def do(self, piece: tuple[int, list[Row]]) -> list[str]:
        """Return the values of the function for the rows of a numbered piece."""
        return [self._function(row) for row in piece[1]]


class Rows:
    """Have the nodes call a function with rows, at most ``rows`` in a piece and ``each`` pieces a node; ``counts`` says
    how many each node did, by its name, and ``names`` which node did a row, where a piece is one."""

    def __init__(
        self, function: Callable[[Row], str], on_note: Callable[[str], None], rows: int = _ROWS, each: int = _EACH
    ) -> None:
        self._nodes, self._rows = Nodes[tuple[int, list[Row]]](Answerer, [function], on_note, each), rows
        self._next = 0
        self.counts: dict[str, int] = {}
        self.names: dict[int, str] = {}

    def __call__(self, rows: Iterator[Row]) -> Iterator[str]:
        """Yield the values of the function, in the order of the rows, each once. Raises ``RungError``."""
        done: dict[int, list[str]] = {}
        pieces = self._pieces(rows)
        for name, (number, piece), found in self._nodes.done(lambda speed: next(pieces, None)):
            self.counts[name] = self.counts.get(name, 0) + len(piece)
            done[number] = found
            if self._rows == 1:
                self.names[number] = name
            while self._next in done:
                yield from done.pop(self._next)
                self._next += 1

    def _pieces(self, rows: Iterator[Row]) -> Iterator[tuple[int, list[Row]] | None]:
        """Yield rows in numbered pieces, and None where too many are done that wait for one before them."""
        for number in itertools.count():
            while number - self._next > _MOST_DONE:
                yield None
            piece, characters = list[Row](), 0
            for row in itertools.islice(rows, self._rows):
                piece.append(row)
                characters += len(row[1])
                if characters > _CHARACTERS:
                    break
            if not piece:
                return
            yield number, piece
