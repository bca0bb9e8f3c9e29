"""The adapters that sequences of a loaded model may name."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from rung.core.errors import OutOfMemory, UsageError
from rung.core.text import quoted, size
from rung.core.types import Plan
from rung.engine.decoder import Decoder
from rung.models.adapters.adapter import rank_of
from rung.models.adapters.roles import read_changes
from rung.models.card import ModelCard
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.planning.memory import programs_bytes

#: PEFT's name of the weights without an adapter.
BASE = "__base__"


class Adapters:
    """Adapters by name, beside those that a model was loaded with.

    A sequence keeps its adapter: one that is deleted takes memory until the last of its sequences has ended.
    """

    def __init__(self, card: ModelCard, plan: Plan, decoder: Decoder) -> None:
        self._card, self._plan, self._decoder = card, plan, decoder
        default = decoder.default_adapter
        #: The highest rank that the plan knows of, and of all that were loaded.
        self._planned = self._rank = 0 if default is None else default.rank
        self._room = min(each.budget - each.memory.most for each in plan.placements)
        self._base = decoder.bind_adapter({})
        self._named: dict[str, BoundAdapter] = {}
        self._alive: weakref.WeakSet[BoundAdapter] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes in memory, with those that the model was loaded with, and of what a GPU computes them with."""
        default = self._decoder.default_adapter
        return (0 if default is None else default.nbytes) + self._taken + self._more(self._rank)

    @property
    def _taken(self) -> int:
        return sum(each.nbytes for each in self._alive)

    def _more(self, rank: int) -> int:
        """Return the bytes that programs on a GPU for adapters of a rank take beyond those that were planned."""
        if not any(str(device).startswith("cuda") for _, device in self._decoder.weights.linears):
            return 0
        shape, plan = self._card.decoder, self._plan
        needed, planned = (
            programs_bytes(shape, plan.context, plan.parallel, rank=each) for each in (rank, self._planned)
        )
        return needed - planned

    @property
    def names(self) -> Sequence[str]:
        """Return the names, in the order in which they were loaded."""
        return tuple(self._named)

    def load(self, sources: Sequence[str], name: str) -> None:
        """Read an adapter, or several whose changes are added. Raises what ``read_changes`` raises, ``UsageError`` for
        a name that is taken, and ``OutOfMemory`` where the plan's memory has no room."""
        if not name or name == BASE:
            raise UsageError(
                f"An adapter cannot have the name {name!r}.",
                [f"{BASE} is the model without an adapter"] if name else (),
            )
        if name in self._named:
            raise UsageError(
                f"There is an adapter {name} already.",
                (),
                [f"model.delete_adapter({name!r})", f"model.load_adapter({sources[0]!r}, {name + '-2'!r})"],
            )
        changes = read_changes(sources, self._card)
        rank, taken = max(self._rank, rank_of(changes)), self._taken + self._more(self._rank)
        needed = sum(change.nbytes for several in changes.values() for change in several)
        needed += self._more(rank) - self._more(self._rank)
        if needed > self._room - taken:
            raise OutOfMemory(
                f"The plan's memory has no room for the adapter {name}: it takes {size(needed)}.",
                [f"{size(max(self._room - taken, 0))} are left beside the model and {size(taken)} of other adapters"],
                [
                    *(f"model.delete_adapter({each!r})" for each in list(self._named)[:1]),
                    f"rung.load({quoted(self._card.path)}, memory=...)   # more, or a shorter context",
                ],
            )
        self._named[name], self._rank = self._decoder.bind_adapter(changes), rank
        self._alive.add(self._named[name])

    def move(self, plan: Plan, decoder: Decoder) -> None:
        """Go on with another decoder of the same model: sequences keep their adapters."""
        self._plan, self._decoder = plan, decoder
        self._room = min(each.budget - each.memory.most for each in plan.placements)
        for each in (self._base, *self._alive):
            each.move(decoder.weights)

    def delete(self, name: str) -> None:
        """Forget an adapter; sequences that have it go on with it. Raises ``UsageError`` for an unknown name."""
        self._known(name)
        del self._named[name]

    def get(self, name: str | None) -> BoundAdapter | None:
        """Return the adapter of a name, None for those that the model was loaded with. Raises ``UsageError``."""
        if name is None:
            return None
        return self._base if name == BASE else self._known(name)

    def _known(self, name: str) -> BoundAdapter:
        if name not in self._named:
            names = ", ".join(self._named)
            raise UsageError(
                f"There is no adapter {name}.",
                [f"adapters: {names}" if names else "no adapter has been loaded by name"],
                [f"model.load_adapter(DIR, {name!r})"],
            )
        return self._named[name]
