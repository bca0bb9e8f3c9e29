"""The models of a fleet: deployments for each class of devices that is there, and the nodes that answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import serve
from ray.exceptions import RayError

from rung.core.errors import DoesNotFit, RungError, UsageError
from rung.core.types import Device
from rung.engine.open_model import open_any
from rung.fleet import weights
from rung.fleet.deployments import Deployment, NodeLost, Speeds, actor_on, keep
from rung.fleet.engine import FleetEngine
from rung.fleet.messages import (
    CLASS_LABEL,
    Failure,
    FleetStatus,
    ModelStatus,
    NodeLog,
    NodeReport,
    NodeStatus,
    ReplicaState,
    ServedModel,
    StageReport,
    Versions,
)
from rung.fleet.replica import explained
from rung.fleet.work.stages import Division, StageHost, divide
from rung.hardware import detect
from rung.models.card import ModelCard
from rung.models.lookup import find_path
from rung.server.child.machines import STAGE_LOST
from rung.server.engines import Listed
from rung.server.errors import ApiError
from rung.server.protocol import Failed, Load

#: Seconds between two looks at the nodes, that a replica has to answer, and that one which computes may be silent.
_LOOK, _STATE_SECONDS, _SILENT_SECONDS = 0.5, 5.0, 10.0
#: Failures that are kept, and seconds in which the same one is noted once.
_FAILURES, _SAME_SECONDS = 20, 30.0
#: Seconds between two times that the rates of nodes are kept for the next run.
_KEEP_SECONDS = 20.0
#: Seconds that the first model has to be ready on a node.
_START_SECONDS = 300.0


#: Codes of a model that a node cannot have: several nodes may.
_DIVIDED = frozenset({DoesNotFit.code, STAGE_LOST})


class DividedModel:
    """A model that lies on several nodes: its parts, Ray's ids of their nodes, and the actors of all but the first."""

    def __init__(self, division: Division, nodes: Sequence[str], hosts: Sequence[Any]) -> None:
        self.division, self.nodes, self._hosts = division, nodes, hosts
        self.first = nodes[0]

    def is_whole(self, nodes: Collection[str]) -> bool:
        """Return whether every node with a part is among these."""
        return all(node in nodes for node in self.nodes)

    def is_lost(self, state: ReplicaState | None) -> bool:
        """Return whether the first node says that another one is lost."""
        return state is not None and state.failed is not None and state.failed.code == STAGE_LOST

    def words(self) -> str:
        """Return which node has what."""
        return ", ".join(f"layers {p.first} to {p.last - 1} on {p.node}" for p in self.division.parts)

    def end(self) -> None:
        """End the processes that have parts."""
        for host in self._hosts:
            ray.kill(host)


def _processor(report: NodeReport) -> Device:
    """Return the processor of a node as plans know it: of this machine's kind, with its memory and speed."""
    (own,) = [each for each in detect.devices() if each.kind == "cpu"]
    found = next((each for each in report.devices if each.id == own.id), None)
    if found is None:
        raise RungError(f"{report.name} says nothing of its processor.", code="fleet-no-node")
    bandwidth = found.bandwidth or None
    return replace(own, name=found.name, memory=found.memory, free=found.budget, bandwidth=bandwidth)


def _words_of(failed: Failed) -> str:
    """Return the cause and the facts of a failure, in one line."""
    return " ".join([failed.cause, *failed.facts])


def _division_of(model: str, processors: Mapping[str, Device], options: Mapping[str, Any]) -> Division:
    """Return the division of a model. Raises ``RungError``, also for one that cannot be divided."""
    card = open_any(find_path(model))
    if not isinstance(card, ModelCard):
        raise RungError(f"{card.name} is built by transformers, which divides no layers.", code="fleet-no-node")
    return divide(card, processors, options)


class FleetPool:
    """The models by name. ``watching`` runs as long as the fleet does, in the event loop of the server."""

    def __init__(
        self,
        models: Mapping[str, Load],
        address: str,
        versions: Versions,
        on_note: Callable[[str], None],
        watching: Callable[[FleetPool], Awaitable[None]],
        end: Callable[[], None],
    ) -> None:
        self._loads, self._address, self._versions, self._on_note = models, address, versions, on_note
        self._watching, self.end = watching, end
        self.url = ""
        self.engines = {
            name: FleetEngine(name, on_note, functools.partial(self._note_failure, name)) for name in models
        }
        self._failures: deque[Failure] = deque(maxlen=_FAILURES)
        self._explaining: set[asyncio.Task[None]] = set()
        self._reports: dict[str, NodeReport] = {}
        self._leaving: set[str] = set()
        self._deployments: dict[tuple[str, str], Deployment] = {}
        self._states: dict[tuple[str, str], ReplicaState] = {}
        self._last_active: dict[tuple[str, str], float] = {}
        self._nodes: dict[str, Any] = {}
        self._files: dict[str, list[weights.ModelFile]] = {}
        self._source: Any = None
        #: Models that are divided over nodes, and those nodes among which one could not be.
        self._divided: dict[str, DividedModel] = {}
        self._tried: dict[str, frozenset[str]] = {}
        #: What divides a model now, or did last: weights are read meanwhile, and nodes are watched.
        self._dividing: dict[str, asyncio.Task[None]] = {}
        #: Models that were divided, are not any more, and could not be divided again yet.
        self._again: set[str] = set()
        self._speeds, self._kept = Speeds(), time.monotonic()
        self._tasks: set[asyncio.Future[None]] = set()

    # ---- as a server knows the models

    @property
    def loaded(self) -> Sequence[FleetEngine]:
        """Return the models."""
        return list(self.engines.values())

    @property
    def waits_for(self) -> FleetEngine | None:
        """Return a model that no node has."""
        return next((each for each in self.engines.values() if not each.is_ready), None)

    def find(self, name: str | None) -> FleetEngine:
        """Return the model of a name, without one the first. Raises ``ApiError`` (404)."""
        if name is None:
            return next(iter(self.engines.values()))
        for each in (name, name.removesuffix(":latest")):
            if each in self.engines:
                return self.engines[each]
        known = ", ".join(self.engines)
        raise ApiError(404, f"There is no model {name!r}; there is {known}.", param="model", code="model_not_found")

    def listed(self) -> Sequence[Listed]:
        """Return the models."""
        return [Listed(name, engine, None) for name, engine in self.engines.items()]

    async def drop(self, name: str) -> str:
        """Raise ``ApiError``: the models of a fleet stay as long as it does."""
        model = self.find(name).name
        raise ApiError(409, f"{model} is served by the fleet, and stays.", param="model", code="in_use")

    async def start(self) -> None:
        """Deploy the models; return when a node has the first one. Raises ``RungError`` where none can have it."""
        self._tasks = {asyncio.ensure_future(self._watching(self)), asyncio.ensure_future(self._watch())}
        first, until = next(iter(self.engines.values())), time.monotonic() + _START_SECONDS
        while not first.is_ready:
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > until:
                cause = f"No node has {first.name} after {_START_SECONDS:.0f} s."
                raise RungError(cause, [] if first.failed is None else [first.failed.cause], code="fleet-no-node")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End what watches the nodes."""
        tasks: list[asyncio.Future[Any]] = [*self._tasks, *self._speeds.tasks, *self._dividing.values()]
        tasks += self._explaining
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # its threads go on, and find no Ray
        await asyncio.to_thread(ray.shutdown)

    def connect(self) -> None:
        """Connect this process to Ray, before it handles signals: Ray brings handlers that abort."""
        logging.getLogger("ray").setLevel(logging.ERROR)
        ray.init(address=self._address, log_to_driver=False, logging_level="error", configure_logging=False)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING", "enable_access_log": False})
        for each in ("ray", "ray.serve"):
            logging.getLogger(each).setLevel(logging.ERROR)
        for name, load in self._loads.items():
            self._files[name] = weights.files_of(Path(load.model)) if Path(load.model).exists() else []
        files = [file for several in self._files.values() for file in several]
        self._source = actor_on(ray.get_runtime_context().get_node_id(), weights.FileSource, files)

    # ---- nodes

    async def _watch(self) -> None:
        """Look at the nodes as long as the fleet runs."""
        while True:
            found = await asyncio.to_thread(ray.nodes)
            before, self._nodes = self._nodes, {each["NodeID"]: each for each in found if each["Alive"]}
            self._note_lost(before, found)
            for node in [node for model in self.engines.values() for node in list(model.router.nodes)]:
                if node not in self._nodes:
                    self._lose(node)
            await asyncio.to_thread(self._deploy)
            await asyncio.gather(*(self._look_at(node) for node in self._nodes))
            for model, engine in self.engines.items():
                dividing = self._dividing.get(model)
                if dividing is not None and dividing.done():
                    dividing.result()
                if not engine.is_ready and (dividing is None or dividing.done()):
                    self._dividing[model] = asyncio.create_task(self._divide(model, engine))
            self._keep_rates()
            await asyncio.sleep(_LOOK)

    def _class_of(self, node: str) -> str:
        return str(self._nodes[node]["Labels"].get(CLASS_LABEL, ""))

    def _name_of(self, node: str) -> str:
        return str(self._nodes[node]["NodeName"])

    def _able(self) -> list[str]:
        """Return the nodes that compute and stay."""
        return [node for node in self._nodes if self._class_of(node) and self._name_of(node) not in self._leaving]

    def _deploy(self) -> None:
        """Have each model on each class of devices that is there, a replica a node."""
        for model, load in self._loads.items():
            for device_class in {self._class_of(node) for node in self._nodes} - {""}:
                key = model, device_class
                if key not in self._deployments:
                    arguments = load, self._files[model], self._source
                    self._deployments[key] = Deployment(model, device_class, *arguments)
                    self._deployments[key].start()

    async def _look_at(self, node: str) -> None:
        """Ask the replicas of a node how they are."""
        if self._name_of(node) in self._leaving or not self._class_of(node):
            return
        for model, engine in self.engines.items():
            key, deployment = (model, node), self._deployments[model, self._class_of(node)]
            try:
                known, state = self._states.get(key), await deployment.state(node, _STATE_SECONDS)
                self._states[key] = state
            except NodeLost:
                if time.monotonic() - self._last_active.get(key, 0.0) > _SILENT_SECONDS:
                    engine.lose(node)
                continue
            self._last_active[key] = time.monotonic()
            self._note_change(model, known, state)
            if (divided := self._divided.get(model)) is not None and not divided.is_whole(self._able()):
                if divided.first == node and not divided.is_whole(self._nodes):
                    engine.lose(node)
                continue  # a node that leaves lets answers end, and then has no more
            if model in self._again:
                continue  # the replica still has layers whose others have ended
            if state.model is not None:
                state = self._with_rates(deployment, engine, state)
            self._states[key] = state
            engine.set_node(deployment, node, self._name_of(node), state)

    def _with_rates(self, deployment: Deployment, engine: FleetEngine, state: ReplicaState) -> ReplicaState:
        """Return a state with the rates of a replica; without rates, and so not ready, while it is measured."""
        divided, name = self._divided.get(engine.name), self._name_of(state.node)
        rates = self._speeds.of(deployment, state, name, divided is not None)
        if rates is None:
            return state
        if divided is not None:  # a part alone is predicted there
            rates = msgspec.structs.replace(rates, predicted=divided.division.alone)
            return msgspec.structs.replace(state, rates=rates)
        node = engine.router.nodes.get(state.node)
        if node is not None:
            found = self._speeds.again(deployment, state, name, node, self._is_idle(state.node))
            if found is not None:
                engine.set_rates(state.node, found)
                rates = found
        return msgspec.structs.replace(state, rates=rates)

    def _is_idle(self, node: str) -> bool:
        """Return whether no model computes on a node, and none is loaded there."""
        for model, engine in self.engines.items():
            divided, dividing = self._divided.get(model), self._dividing.get(model)
            computing = divided.first if divided is not None and node in divided.nodes else node
            known, state = engine.router.nodes.get(computing), self._states.get((model, computing))
            is_loaded = known is not None or (state is not None and state.failed is not None)
            if not is_loaded or (known is not None and known.running) or (dividing is not None and not dividing.done()):
                return False
        return True

    def _keep_rates(self) -> None:
        """Keep how fast nodes are, for the next run, from time to time."""
        if time.monotonic() - self._kept < _KEEP_SECONDS:
            return
        self._kept = time.monotonic()
        for (model, node), state in self._states.items():
            found = self.engines[model].rates_of(node)
            if found is not None and state.model is not None and node in self._nodes and model not in self._divided:
                keep(self._deployments[model, self._class_of(node)], self._name_of(node), state.model, *found)

    async def _divide(self, model: str, engine: FleetEngine) -> None:
        """Divide a model that no node holds alone over those of the class that has most of them; once for the same
        nodes, unless one of them was lost."""
        able = self._able()
        states = {node: self._states.get((model, node)) for node in able}
        known = self._divided.get(model)
        is_broken = model in self._again or (known is not None and not known.is_whole(able))
        if known is not None and not is_broken and not known.is_lost(states[known.first]):
            return
        refused = [
            state is not None and state.failed is not None and state.failed.code in _DIVIDED
            for state in states.values()
        ]
        if not (is_broken or all(refused)):
            return
        classes = Counter(map(self._class_of, able))
        nodes = [node for node in able if self._class_of(node) == max(classes, key=lambda each: classes[each])]
        if len(nodes) < 2 or (known is None and self._tried.get(model) == frozenset(nodes)):
            return
        self._tried[model] = frozenset(nodes)
        if (before := self._divided.pop(model, None)) is not None:
            before.end()
            self._again.add(model)
            self._speeds.forget(model)
        try:
            self._divided[model] = await self._load_divided(model, nodes)
            self._again.discard(model)
            self._forget_misfits(model)
        except (RayError, NodeLost):
            del self._tried[model]  # a replica that begins, or a node that is gone, and soon not among these
        except RungError as error:
            engine.failed = Failed(id=0, status=503, code=DoesNotFit.code, cause=error.cause, facts=list(error.facts))
            self._on_note(f"{model} cannot be divided: {' '.join([error.cause, *error.facts])}")

    async def _load_divided(self, model: str, nodes: Sequence[str]) -> DividedModel:
        """Plan and load the parts of a model. Raises ``RungError``, ``RayError`` and ``NodeLost``."""
        names, load = {self._name_of(node): node for node in nodes}, self._loads[model]
        options = {name: value for name, value in load.options.items() if value is not None}
        processors = {name: _processor(self._reports[name]) for name in names if name in self._reports}
        division = await asyncio.to_thread(_division_of, load.model, processors, options)
        first, *others = division.parts
        options |= {"context": division.context}
        arguments = self._files[model], self._source, load.model
        hosts = [actor_on(names[part.node], StageHost, *arguments) for part in others]
        divided = DividedModel(division, [names[part.node] for part in division.parts], hosts)
        try:
            for part, host in zip(others, hosts, strict=True):
                found = msgspec.msgpack.decode(await host.load.remote(part.first, part.last, options), type=StageReport)
                if found.cause:
                    raise RungError(f"{part.node} cannot have layers of {model}.", [found.cause], code="fleet-no-node")
            divided_load = msgspec.structs.replace(load, options=options, layers=first.last, stages=len(division.parts))
            deployment = self._deployments[model, self._class_of(divided.first)]
            await deployment.divide(divided_load, hosts, divided.first)
        except BaseException:
            divided.end()
            raise
        self._on_note(f"{model} fits on no node alone: {divided.words()}")
        return divided

    def _lose(self, node: str) -> None:
        for engine in self.engines.values():
            engine.lose(node)

    # ---- what failed

    def _note_lost(self, before: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> None:
        """Note the nodes of ``before`` that are gone, with what Ray says of them in ``found``."""
        reasons = {each["NodeID"]: each.get("DeathReasonMessage") or "" for each in found}
        for node in before.keys() - self._nodes.keys():
            name = str(before[node]["NodeName"])
            if before[node]["Labels"].get(CLASS_LABEL) and name not in self._leaving:
                cause = f"The node does not answer any more. {reasons.get(node, '')}".strip()
                self._explain(name, "", cause, None)

    def _note_change(self, model: str, before: ReplicaState | None, state: ReplicaState) -> None:
        """Note what a replica says that has failed, or that is another process than the one before."""
        if before is not None and before.process != state.process:
            self._note_failure(model, state.node, f"The process with {model} ended.", before.process)
        if state.failed is None or (before is not None and before.failed == state.failed):
            return
        if model not in self._divided or state.failed.code not in _DIVIDED:
            self._note_failure(model, state.node, _words_of(state.failed), state.process)

    def _forget_misfits(self, model: str) -> None:
        """Forget that a model fits on no node alone: it is divided."""
        failed = [state.failed for (name, _), state in self._states.items() if name == model]
        causes = {_words_of(each) for each in failed if each is not None and each.code in _DIVIDED}
        kept = (each for each in self._failures if each.model != model or each.cause not in causes)
        self._failures = deque(kept, maxlen=_FAILURES)

    def _note_failure(self, model: str, node: str, cause: str, process: int | None = None) -> None:
        """Note that a model failed on a node; ``process`` is the one whose log says why, else the one that has it."""
        if node in self._nodes and self._name_of(node) not in self._leaving:
            state, deployment = self._states.get((model, node)), self._deployments.get((model, self._class_of(node)))
            process = process if process is not None or state is None else state.process
            ask = None
            if deployment is not None and process is not None:
                ask = functools.partial(deployment.log, process, cause, node)
            self._explain(self._name_of(node), model, cause, ask)

    def _explain(self, name: str, model: str, cause: str, ask: Callable[[], Awaitable[NodeLog]] | None) -> None:
        """Have a failure explained, where its log is if that machine answers; once where it comes several times."""
        now = time.time()
        same = (name, model, cause)
        if any((f.node, f.model, f.cause) == same and now - f.time < _SAME_SECONDS for f in self._failures):
            return
        failure = Failure(name, model, now, cause, NodeLog())
        self._failures.appendleft(failure)

        async def explain() -> None:
            found = None
            if ask is not None:
                with contextlib.suppress(NodeLost):
                    found = await ask()
            if found is None:
                found = await asyncio.to_thread(explained, "", cause, {})
            with contextlib.suppress(ValueError):  # so many failed meanwhile that it is forgotten
                self._failures[self._failures.index(failure)] = msgspec.structs.replace(failure, log=found)

        task = asyncio.ensure_future(explain())
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)

    # ---- as other machines know the fleet

    def enter(self, report: NodeReport, *, again: bool = False) -> None:
        """Note a machine that may join, or that comes back. Raises ``UsageError`` where another one of its name is
        there."""
        names = {self._name_of(node) for node in self._nodes}
        known = self._reports.get(report.name)
        is_same = again and known is not None and known.address == report.address
        if report.name in names and not is_same:
            raise UsageError(f"The fleet has a node {report.name} already.", (), ["rung fleet join ... --name ANOTHER"])
        self._leaving.discard(report.name)
        self._reports[report.name] = report

    async def leave(self, name: str) -> None:
        """Return when a node computes nothing any more and gets nothing more. Raises ``UsageError``."""
        nodes = [node for node in self._nodes if self._name_of(node) == name]
        if not nodes:
            raise UsageError(f"The fleet has no node {name}.")
        self._leaving.add(name)
        for model, engine in self.engines.items():
            divided = self._divided.get(model)
            await engine.drain(divided.first if divided is not None and nodes[0] in divided.nodes else nodes[0])

    def status(self) -> FleetStatus:
        """Return the state of the fleet."""
        nodes = {self._name_of(node): node for node in self._nodes}
        shown = []
        for name, report in self._reports.items():
            node = nodes.get(name, "")
            state = "leaving" if name in self._leaving else "up" if node else "lost"
            models = [self._status_on(node, model, engine) for model, engine in self.engines.items()]
            shown.append(NodeStatus(report, state, models if node and report.device_class else []))
        waiting = sum(engine.router.waiting for engine in self.engines.values())
        failures = list(self._failures)
        return FleetStatus(self.url, self._address, self._versions, shown, waiting, self._served(), failures)

    def _status_on(self, node: str, model: str, engine: FleetEngine) -> ModelStatus:
        """Return how a model is on a node, and which of its layers are there."""
        found = engine.status_on(node, self._states.get((model, node)))
        divided = self._divided.get(model)
        if divided is None or node not in divided.nodes:
            return found
        part = divided.division.parts[divided.nodes.index(node)]
        layers = f"layers {part.first} to {part.last - 1}"
        if node == divided.first:
            return msgspec.structs.replace(found, layers=layers)
        state = "ready" if engine.is_ready else "loading"
        return ModelStatus(model, state, memory=part.memory, context=divided.division.context, layers=layers)

    def _served(self) -> list[ServedModel]:
        """Return the models with the hashes of their files."""
        hashes = {name: {each.name: each.sha256 for each in files} for name, files in self._files.items()}
        return [ServedModel(name, found, self.engines[name].router.waiting) for name, found in hashes.items()]
