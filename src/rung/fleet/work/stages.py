"""A model that no node holds alone: how its layers are divided, and the nodes that have those behind the first ones."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rung.core.errors import DoesNotFit, RungError
from rung.core.text import size
from rung.core.types import Device, Plan
from rung.core.value import Value
from rung.engine.scheduling.stages import Stage, load_stage, plan_part
from rung.fleet import weights
from rung.fleet.messages import StageReport
from rung.fleet.weights import ModelFile
from rung.models.card import ModelCard
from rung.models.roles import layer_of
from rung.planning.network_spec import Subject
from rung.planning.request import most_memory, parse_memory
from rung.planning.solve import contexts_of

#: Bytes that a process of Ray takes in addition to its plan, and those of requests on the first node.
_RAY_BYTES, _REQUEST_BYTES = 128 * 2**20, 64 * 2**20
#: Times that the slowest part is made shorter by half of what is left.
_HALVINGS = 40


@dataclass(frozen=True)
class Part(Value):
    """Layers [first, last) on a node, the bytes that they take there at most, and tokens a second of them alone: of its
    share of the answers at once (``rate``), of one answer, and of prompts."""

    node: str
    first: int
    last: int
    memory: int
    rate: float
    single: float
    prefill: float


@dataclass(frozen=True)
class Division(Value):
    """The parts of a model, in the order of its layers, and the context that they have room for."""

    parts: tuple[Part, ...]
    context: int

    @property
    def together(self) -> float:
        """Return the tokens a second where every node has something to compute: those of the slowest part."""
        return min(part.rate for part in self.parts)

    @property
    def prefill(self) -> float:
        """Return the tokens a second of a prompt, which goes from node to node."""
        return 1 / sum(1 / part.prefill for part in self.parts)

    @property
    def alone(self) -> float:
        """Return the tokens a second of one answer, without what hops take."""
        return 1 / sum(1 / part.single for part in self.parts)


def divide(card: ModelCard, nodes: Mapping[str, Device], options: Mapping[str, Any]) -> Division:
    """Return the layers of a model over as few nodes as hold them, each part as short as it can be.

    ``nodes`` have their processors by name; ``options`` are those of ``rung.load``, whose ``memory`` is for each node.
    Raises ``DoesNotFit`` where all nodes together do not hold it.
    """
    order = sorted(nodes, key=lambda name: -_budget(nodes[name], options))[: len(card.decoder.layers)]
    for context in contexts_of(Subject.of_card(card), options.get("context")):
        plans = _Plans(card, {**options, "context": context})

        def parts(count: int, plans: _Plans = plans) -> list[Part]:
            chosen = sorted(order[:count], key=lambda name: -(nodes[name].bandwidth or 0))
            return _Dividing(plans, [(name, nodes[name]) for name in chosen]).parts()

        if found := next(filter(None, map(parts, range(2, len(order) + 1))), None):
            return Division(tuple(found), context)
    budgets = [f"{name}: {size(_budget(device, options))}" for name, device in nodes.items()]
    raise DoesNotFit(
        f"{card.name} does not fit on {len(nodes)} nodes together.",
        [*budgets, f"its weights take {size(card.weight_bytes)}"],
        ["rung fleet token   # for one more machine", "--context 512", "a format with fewer bits"],
    )


def _budget(device: Device, options: Mapping[str, Any]) -> int:
    """Return the bytes that a plan may use of a processor."""
    limits = parse_memory(options.get("memory"))
    requested = limits.get(device.id, limits.get("*"))
    return device.budget if requested is None else min(requested, most_memory(device))


class _Plans:
    """The plans for layers of a model on processors that have any memory; those that differ in name and speed alone
    need as much."""

    def __init__(self, card: ModelCard, options: Mapping[str, Any]) -> None:
        self.card, self.all_options = card, options
        self.options = {name: value for name, value in options.items() if name not in ("memory", "device")}
        self._most = functools.cache(self._most_of)

    def plan(self, device: Device, first: int, last: int, parallel: int | None = None) -> Plan:
        """Return the plan for some layers on a processor."""
        options = self.options if parallel is None else {**self.options, "parallel": parallel}
        return plan_part(self.card, first, last, [replace(device, memory=2**50, free=2**50)], **options)[0]

    def most(self, device: Device, first: int, last: int) -> int:
        """Return the bytes that some layers take at most."""
        return self._most(replace(device, name="", memory=0, free=0, bandwidth=None), first, last)

    def _most_of(self, device: Device, first: int, last: int) -> int:
        return self.plan(device, first, last).placements[0].memory.most


class _Dividing:
    """The search for the shortest parts of a model on nodes in an order."""

    def __init__(self, plans: _Plans, nodes: Sequence[tuple[str, Device]]) -> None:
        self._plans, self._nodes, card = plans, nodes, plans.card
        self._budgets = [_budget(device, plans.all_options) for _, device in nodes]
        self._layers = len(card.decoder.layers)
        by_layer, self._head = [0] * self._layers, 0
        for tensor in card.tensors:
            if (layer := layer_of(tensor.role)) is not None:
                by_layer[layer] += tensor.bytes
            elif tensor.role == ("embed" if card.tied_head else "head"):
                self._head = tensor.bytes
        self._until = [sum(by_layer[:count]) for count in range(self._layers + 1)]

    def parts(self) -> list[Part]:
        """Return the parts whose slowest is as fast as can be; none where they do not fit."""
        low, high = 0.0, self._seconds(0, 0, self._layers) + self._until[-1]
        best = self._cut(math.inf)
        for _ in range(_HALVINGS if best else 0):
            middle = (low + high) / 2
            if found := self._cut(middle):
                best, high = found, middle
            else:
                low = middle
        return [self._part(number, *each) for number, each in enumerate(best)]

    def _cut(self, seconds: float) -> list[tuple[int, int]]:
        """Return ranges of layers, one a node, none of which takes longer; no range where that cannot be."""
        found, first = list[tuple[int, int]](), 0
        for number in range(len(self._nodes)):
            left = len(self._nodes) - number - 1
            last = min(self._most(number, first), self._layers - left)
            while last > first and self._seconds(number, first, last) > seconds:
                last -= 1
            if last == first:
                return []
            found.append((first, last))
            first = last
        return found if first == self._layers else []

    def _seconds(self, number: int, first: int, last: int) -> float:
        """Return the time that reading some layers takes on a node; the first one has the head too."""
        nbytes = self._until[last] - self._until[first] + (self._head if first == 0 else 0)
        return nbytes / (self._nodes[number][1].bandwidth or 1.0)

    def _most(self, number: int, first: int) -> int:
        """Return the last layer up to which those from ``first`` on have room on a node."""
        low, high = first, self._layers
        while low < high:
            middle = (low + high + 1) // 2
            if self._plans.most(self._nodes[number][1], first, middle) <= self._budgets[number] - _overhead(first):
                low = middle
            else:
                high = middle - 1
        return low

    def _part(self, number: int, first: int, last: int) -> Part:
        name, device = self._nodes[number]
        share = -(-(self._plans.options.get("parallel") or 1) // len(self._nodes))
        group, one = (self._plans.plan(device, first, last, parallel) for parallel in (share, 1))
        memory = self._plans.most(device, first, last) + _overhead(first)
        return Part(name, first, last, memory, group.decode_rate, one.decode_rate, one.prefill_rate)


def _overhead(first: int) -> int:
    """Return the bytes that a process takes in addition to its plan."""
    return _REQUEST_BYTES if first == 0 else _RAY_BYTES


class StageHost:
    """Layers of a model behind its first ones; an actor of Ray, whose calls are computed in the order in which the node
    with the first layers makes them."""

    def __init__(self, files: Sequence[ModelFile], source: Any, model: str) -> None:
        self._files, self._source, self._model = files, source, model
        self._stage: Stage | None = None

    def load(self, first: int, last: int, options: dict[str, Any]) -> bytes:
        """Fetch the files, read these layers, and return a ``StageReport``."""
        from rung.engine.open_model import open_any
        from rung.models.lookup import find_path

        try:
            path = asyncio.run(weights.fetch(self._files, self._source)) if self._files else self._model
            card = open_any(find_path(str(path)))
            assert isinstance(card, ModelCard), "the head divides no other"
            self._stage = load_stage(card, first, last, {**options, "reserved": _RAY_BYTES})
        except RungError as error:
            return msgspec.msgpack.encode(StageReport(cause=" ".join([error.cause, *error.facts])))
        return msgspec.msgpack.encode(StageReport(self._stage.plan.memory + _RAY_BYTES, self._stage.same_bytes))

    def compute(self, batch: bytes, hidden: bytes) -> bytes:
        """Return hidden states behind these layers; see ``Stage.compute``."""
        assert self._stage is not None, "it is loaded first"
        return self._stage.compute(batch, hidden)
