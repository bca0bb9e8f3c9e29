"""Forecast a fleet before anybody moves a machine: which node runs a model how, and what all of them give."""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import RungError, UsageError
from rung.core.files import read_text
from rung.core.types import Device
from rung.core.value import Value
from rung.engine.checking import answer_for
from rung.engine.open_model import open_any
from rung.fleet.messages import FleetStatus
from rung.fleet.router import Rates
from rung.fleet.simulator import Outcome, SimulatedNode, Simulation, burst, poisson
from rung.fleet.work.stages import divide
from rung.hardware.select import select_groups
from rung.models.card import ModelCard
from rung.models.lookup import find_path
from rung.planning.check_result import Question

#: Answers at once of a node of which nobody says how many it has room for.
SLOTS = 4
#: Nodes at most, tokens of prompts and answers of the traces, seconds of the one that comes evenly, and its load.
MOST_NODES, PROMPT, ANSWER, _SECONDS, _LOAD = 10_000, 256, 128, 60.0, 0.7
#: Requests of that trace at most: of a very large fleet it is shorter.
_MOST_REQUESTS = 20_000
#: Nodes of one kind at most over which a model is divided.
_MOST_PARTS = 64
_KEYS = {"name", "device", "count"}


@dataclass(frozen=True)
class Kind(Value):
    """Nodes of one kind: the device that they have by the name that ``rung check`` knows, and how many there are."""

    name: str
    device: str
    count: int = 1


@dataclass(frozen=True)
class Part(Value):
    """One kind of node with the model: format, bytes and tokens a second of one node; or why nothing. ``layers`` says
    which ones it has of a model that is divided; its rates are then those of all parts, at the first of them."""

    kind: Kind
    format: str = ""
    memory: int = 0
    rates: Rates | None = None
    reason: str = ""
    layers: str = ""

    @property
    def together(self) -> float:
        """Return the tokens a second of all nodes of the kind."""
        return 0.0 if self.rates is None else self.kind.count * self.rates.decode_sum


@dataclass(frozen=True)
class Forecast(Value):
    """The forecast of a fleet: its parts, and simulated traces: 64 requests at once, and a load of 70 %."""

    model: str
    parts: tuple[Part, ...]
    at_once: Outcome | None
    steady: Outcome | None
    requests_per_second: float = 0.0

    @property
    def together(self) -> float:
        """Return the tokens a second of all nodes."""
        return sum(part.together for part in self.parts)


def read(path: Path) -> list[Kind]:
    """Return the nodes of a TOML file: ``[[nodes]]`` with ``device``, ``count`` and ``name``. Raises ``UsageError``."""
    example = ['[[nodes]]\ndevice = "rtx 3060"\ncount = 2']
    try:
        document = tomllib.loads(read_text(path, ["a TOML file with [[nodes]]"]))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}", (), example) from error
    rows = document.get("nodes")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path} names no nodes.", (), example)
    kinds = [_kind(row, f"{path}, nodes {number}") for number, row in enumerate(rows, 1)]
    if (count := sum(kind.count for kind in kinds)) > MOST_NODES:
        raise UsageError(f"{path} has {count:,} nodes; {MOST_NODES:,} are simulated at most.")
    return kinds


def _kind(row: Any, where: str) -> Kind:
    if not isinstance(row, dict) or not isinstance(row.get("device"), str):
        raise UsageError(f"{where}: it has no device.")
    if unknown := sorted(row.keys() - _KEYS):
        raise UsageError(f"{where}: {unknown[0]} is none of {', '.join(sorted(_KEYS))}.")
    count, name = row.get("count", 1), row.get("name", row["device"])
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_NODES:
        raise UsageError(f"{where}: count {count!r} is no number of nodes.", code="value-out-of-range")
    if not isinstance(name, str):
        raise UsageError(f"{where}: name {name!r} is no text.")
    return Kind(name, row["device"], count)


def part_of(model: str, kind: Kind, question: Question, check: Callable[..., Any] = answer_for) -> Part:
    """Return the part of a kind of node, as ``rung check`` says for its device. All its answers together get
    what several rows of a step get: at most the speed of prompts. Raises ``RungError`` for an unknown model or device.
    """
    groups = select_groups((kind.device,), None, False)
    answer = check(model, groups, question, trace=False, offline=False, revision=None)
    if answer.best is None:
        refused = next((each.verdict.reason for each in answer.choices if each.verdict.reason), "it does not fit")
        return Part(kind, reason=refused)
    best = answer.choices[answer.best]
    decode, prefill = best.speed.decode_tokens_per_second, best.speed.prefill_tokens_per_second
    if not decode or not prefill:
        return Part(kind, best.format, best.memory.total, reason="its speed is not known")
    return Part(kind, best.format, best.memory.total, Rates(prefill, decode, max(min(SLOTS * decode, prefill), decode)))


def forecast(model: str, kinds: Sequence[Kind], question: Question) -> Forecast:
    """Return the forecast for nodes of these kinds. Raises ``RungError`` as ``part_of``."""
    parts = tuple(part_of(model, kind, question) for kind in kinds)
    if all(part.rates is None for part in parts):
        parts = _divided(model, kinds, question) or parts
    nodes = [
        SimulatedNode(f"{part.kind.name} {number}", SLOTS, part.rates)
        for part in parts
        if part.rates is not None
        for number in range(part.kind.count)
    ]
    return _simulated(model, parts, nodes)


def _divided(model: str, kinds: Sequence[Kind], question: Question) -> tuple[Part, ...]:
    """Return the parts of a model that no node holds, over processors; none where it is not here, or does not fit."""
    processors = dict[str, Device]()
    totals = Counter({kind.name: 0 for kind in kinds})
    for kind in kinds:
        totals[kind.name] += kind.count
    numbers = {name: itertools.count(1) for name in totals}
    for kind in kinds:
        device = next((each for each in select_groups((kind.device,), None, False)[0] if each.kind == "cpu"), None)
        if device is not None:
            name, count = kind.name, min(kind.count, _MOST_PARTS)
            names = [name] if totals[name] == 1 else [f"{name} {next(numbers[name])}" for _ in range(count)]
            processors |= dict.fromkeys(names, device)
    format = next(iter(question.formats), None)
    options = {"context": question.context, "memory": dict(question.memory) or None, "parallel": question.batch}
    more = {"cache_type": question.cache_type, "format": format}
    try:
        card = open_any(find_path(model, offline=True))
        if not isinstance(card, ModelCard) or len(processors) < 2:
            return ()
        division = divide(card, processors, {**options, **more})
    except RungError:
        return ()
    rates = Rates(division.prefill, division.alone, max(division.together, division.alone))
    return tuple(
        Part(
            Kind(part.node, processors[part.node].name),
            format or "stored",
            part.memory,
            None if part.first else rates,
            layers=f"layers {part.first} to {part.last - 1}",
        )
        for part in division.parts
    )


def live(status: FleetStatus, model: str) -> Forecast:
    """Return the forecast for the nodes of a running fleet, by the rates that they measured.

    Raises ``RungError`` where the fleet does not serve it.
    """
    parts, nodes = [], []
    for node in status.nodes:
        for each in node.models:
            if each.model != model:
                continue
            kind = Kind(node.report.name, node.report.device_class)
            if each.rates is None:
                reason = "" if each.layers else each.state
                parts.append(Part(kind, memory=each.memory, reason=reason, layers=each.layers))
                continue
            speed = each.speed
            found = each.rates
            rates = Rates(found.prefill * speed, found.decode * speed, found.decode_sum * speed, found.latency / speed)
            parts.append(Part(kind, each.format, each.memory, rates, layers=each.layers))
            nodes.append(SimulatedNode(kind.name, each.slots, rates))
    if not parts:
        served = sorted({each.model for node in status.nodes for each in node.models})
        raise RungError(f"The fleet does not serve {model}.", [f"it serves {', '.join(served)}"], code="fleet-no-node")
    return _simulated(model, tuple(parts), nodes)


def _simulated(model: str, parts: tuple[Part, ...], nodes: list[SimulatedNode]) -> Forecast:
    """Return a forecast with the traces simulated, if any node runs the model."""
    if not nodes:
        return Forecast(model, parts, None, None)
    seconds_each = [PROMPT / node.rates.prefill + ANSWER / node.rates.decode_sum for node in nodes]
    rate = _LOAD * sum(1 / seconds for seconds in seconds_each)
    seconds = min(_SECONDS * max(1.0, max(seconds_each)), _MOST_REQUESTS / rate)
    trace = poisson(rate, seconds, PROMPT, ANSWER) or burst(1, PROMPT, ANSWER)
    at_once = Simulation(nodes).run(burst(64, PROMPT, ANSWER))
    return Forecast(model, parts, at_once, Simulation(nodes).run(trace), rate)
