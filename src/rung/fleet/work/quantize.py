"""``rung quantize --fleet``: pieces of tensors to the nodes, which take the next one when they have done one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from rung.conversion import tensor_pieces
from rung.conversion.tensor_pieces import Done, Piece
from rung.core.errors import RungError
from rung.core.types import Format
from rung.fleet.deployments import actor_on
from rung.fleet.messages import CLASS_LABEL
from rung.formats import Encoded

#: Pieces that a node has: one that it encodes, and one that is on its way.
_EACH = 2
#: Seconds between two looks which nodes are there, and in which the first one has to be.
_LOOK, _NODE_SECONDS = 2.0, 60.0


class Encoder:
    """Encode pieces on a node; an actor."""

    def __init__(self, names: list[str]) -> None:
        from rung import formats
        from rung.engine import process_memory
        from rung.run.self_check import encoders

        self._threads = process_memory.threads(None)
        self._compiled: frozenset[Format] = encoders.prove([formats.get(name) for name in names])

    def encode(self, piece: Piece) -> Done | tuple[str, list[str], list[str], str]:
        """Return a piece in its format, or the cause, facts, ways out and code of a ``RungError``."""
        try:
            return tensor_pieces.encode(piece, self._compiled, self._threads)
        except RungError as error:
            return error.cause, list(error.facts), list(error.ways_out), error.code


class Nodes:
    """The nodes that encode. Called with pieces it yields them done; what was on a node that is lost goes to others.

    ``compiled`` are names of the formats for which it is worth to load compiled encoders. ``counts`` says how many
    pieces each node did, by its name.
    """

    def __init__(self, compiled: list[str], on_note: Callable[[str], None]) -> None:
        self._compiled, self._on_note = compiled, on_note
        self.counts: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._actors: dict[str, Any] = {}
        self._under_way: dict[Any, tuple[str, Piece]] = {}
        self._again: list[Piece] = []
        self._looked = 0.0

    def __call__(self, source: Iterator[Piece]) -> Iterator[tuple[Piece, Done]]:
        """Yield pieces as they are done. Raises ``RungError``."""
        while True:
            self._look()
            self._give(source)
            if not self._under_way:
                return
            ready, _ = ray.wait(list(self._under_way), num_returns=1, timeout=_LOOK)
            for each in ready:
                node, piece = self._under_way.pop(each)
                if (done := self._result(each, node, piece)) is not None:
                    yield piece, done

    def _look(self) -> None:
        """Have an encoder on each node that computes. Raises ``RungError`` where there is none for a while."""
        until = time.monotonic() + _NODE_SECONDS
        while time.monotonic() - self._looked > _LOOK or not self._actors:
            self._looked = time.monotonic()
            alive = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
            for node, about in alive.items():
                if node not in self._actors and about["Labels"].get(CLASS_LABEL):
                    self._names[node] = str(about["NodeName"])
                    self._actors[node] = actor_on(node, Encoder, self._compiled)
            if not self._actors:
                if self._looked > until:
                    raise RungError("No node of the fleet computes.", code="fleet-no-node")
                time.sleep(_LOOK / 4)

    def _give(self, source: Iterator[Piece]) -> None:
        """Give each node what it has room for, the ones with least first."""
        busy = dict.fromkeys(self._actors, 0)
        for node, _ in self._under_way.values():
            busy[node] = busy.get(node, 0) + 1
        while True:
            node = min(self._actors, key=lambda each: busy[each])
            if busy[node] >= _EACH:
                return
            piece = self._again.pop() if self._again else next(source, None)
            if piece is None:
                return
            self._under_way[self._actors[node].encode.remote(piece)] = node, piece
            busy[node] += 1

    def _result(self, reference: Any, node: str, piece: Piece) -> Done | None:
        """Return a piece that was encoded; None where its node is lost: another one gets it. Raises ``RungError``."""
        try:
            found = ray.get(reference)
        except RayError:
            self._again.append(piece)
            if self._actors.pop(node, None) is not None:
                self._on_note(f"{self._names[node]} is lost; others encode what it had.")
            return None
        if isinstance(found, Done):
            self.counts[self._names[node]] = self.counts.get(self._names[node], 0) + 1
            return Done(Encoded(piece.format, found.after.shape, found.after.parts), found.lost)
        cause, facts, ways_out, code = found
        raise RungError(cause, facts, ways_out, code=code)
