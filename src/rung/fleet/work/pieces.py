"""Work in pieces for the nodes of a fleet, which take the next piece when they have done one: ``rung quantize --fleet``
encodes tensors so, ``rung explain --jsonl --fleet`` explains rows, ``rung compare --fleet`` measures formats."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from rung.conversion import tensor_pieces
from rung.conversion.tensor_pieces import Done, Piece
from rung.core.errors import RungError
from rung.core.types import Format
from rung.fleet.deployments import actor_on
from rung.fleet.messages import CLASS_LABEL
from rung.fleet.weights import FileSource, ModelFile
from rung.formats import Encoded

#: Pieces that a node has unless somebody says otherwise: one that it computes, and one that is on its way.
_EACH = 2
#: Seconds between two looks which nodes are there, and in which the first one has to be.
_LOOK, _NODE_SECONDS = 2.0, 60.0
#: Rows to a piece and their characters at most, unless one has more; and pieces that are done before one that is not.
_ROWS, _CHARACTERS, _MOST_DONE = 16, 2**20, 256
P = TypeVar("P")
#: A row of a file: its number and its text.
Row: TypeAlias = tuple[int, str]


class Nodes(Generic[P]):
    """The nodes that compute, each with an actor of ``kind``, whose ``do`` takes a piece; ``arguments`` make it.

    What was on a node that is lost goes to others. A node has ``each`` pieces at once.
    """

    def __init__(self, kind: type, arguments: Sequence[Any], on_note: Callable[[str], None], each: int = _EACH) -> None:
        self._kind, self._arguments, self._on_note, self._each = kind, arguments, on_note, each
        self._names: dict[str, str] = {}
        self._actors: dict[str, Any] = {}
        self._under_way: dict[Any, tuple[str, P]] = {}
        self._again: list[P] = []
        self._looked = 0.0

    def done(self, source: Iterator[P | None]) -> Iterator[tuple[str, P, Any]]:
        """Yield the name of a node, a piece, and what came of it, as they come; a None of ``source`` stands for a piece
        that is to wait for what is under way. Raises ``RungError``, and what an actor raises."""
        while True:
            self._look()
            self._give(source)
            if not self._under_way:
                return
            ready, _ = ray.wait(list(self._under_way), num_returns=1, timeout=_LOOK)
            for each in ready:
                node, piece = self._under_way.pop(each)
                try:
                    found = ray.get(each)
                except RayTaskError:
                    raise  # another node would raise it, too
                except RayError:
                    self._lose(node, piece)
                    continue
                yield self._names[node], piece, found

    def _lose(self, node: str, piece: P) -> None:
        """Note that a node is lost: others get what it had."""
        self._again.append(piece)
        if self._actors.pop(node, None) is not None:
            self._on_note(f"{self._names[node]} is lost; others compute what it had.")

    def _look(self) -> None:
        """Have an actor on each node that computes. Raises ``RungError`` where there is none for a while."""
        until = time.monotonic() + _NODE_SECONDS
        while time.monotonic() - self._looked > _LOOK or not self._actors:
            self._looked = time.monotonic()
            alive = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
            for node, about in alive.items():
                if node not in self._actors and about["Labels"].get(CLASS_LABEL):
                    self._names[node] = str(about["NodeName"])
                    self._actors[node] = actor_on(node, self._kind, *self._arguments)
            if not self._actors:
                if self._looked > until:
                    raise RungError("No node of the fleet computes.", code="fleet-no-node")
                time.sleep(_LOOK / 4)

    def _give(self, source: Iterator[P | None]) -> None:
        """Give each node what it has room for, the ones with least first."""
        busy = dict.fromkeys(self._actors, 0)
        for node, _ in self._under_way.values():
            busy[node] = busy.get(node, 0) + 1
        while True:
            node = min(self._actors, key=lambda each: busy[each])
            if busy[node] >= self._each:
                return
            piece = self._again.pop() if self._again else next(source, None)
            if piece is None:
                return
            self._under_way[self._actors[node].do.remote(piece)] = node, piece
            busy[node] += 1


def source_of(files: Sequence[ModelFile]) -> Any:
    """Return an actor on this machine of which nodes fetch these files."""
    return actor_on(ray.get_runtime_context().get_node_id(), FileSource, files)


class Encoder:
    """Encode pieces on a node; an actor."""

    def __init__(self, names: list[str]) -> None:
        from rung import formats
        from rung.engine import planning
        from rung.run.self_check import encoders

        self._threads = planning.compute_threads(None)
        self._compiled: frozenset[Format] = encoders.prove([formats.get(name) for name in names])

    def do(self, piece: Piece) -> Done | tuple[str, list[str], list[str], str]:
        """Return a piece in its format, or the cause, facts, ways out and code of a ``RungError``."""
        try:
            return tensor_pieces.encode(piece, self._compiled, self._threads)
        except RungError as error:
            return error.cause, list(error.facts), list(error.ways_out), error.code


class Encoders:
    """The nodes that encode. Called with pieces it yields them done.

    ``compiled`` are names of the formats for which it is worth to load compiled encoders. ``counts`` says how many
    pieces each node did, by its name.
    """

    def __init__(self, compiled: list[str], on_note: Callable[[str], None]) -> None:
        self._nodes = Nodes[Piece](Encoder, [compiled], on_note)
        self.counts: dict[str, int] = {}

    def __call__(self, source: Iterator[Piece]) -> Iterator[tuple[Piece, Done]]:
        """Yield pieces as they are done. Raises ``RungError``."""
        for name, piece, found in self._nodes.done(source):
            if not isinstance(found, Done):
                cause, facts, ways_out, code = found
                raise RungError(cause, facts, ways_out, code=code)
            self.counts[name] = self.counts.get(name, 0) + 1
            yield piece, Done(Encoded(piece.format, found.after.shape, found.after.parts), found.lost)


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
        for name, (number, piece), found in self._nodes.done(self._pieces(rows)):
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
