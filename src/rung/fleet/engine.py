"""A model of the fleet, as endpoints know models: requests go to nodes, and on to others where a node is lost."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from rung.fleet.deployments import Deployment, NodeLost
from rung.fleet.messages import ModelStatus, RatesReport, ReplicaState
from rung.fleet.router import CHARACTERS, Job, Node, Rates, Router, pieces_of
from rung.server.child.machines import STAGE_LOST
from rung.server.engines import Event, Replay, TakeNow, take_none, with_seed
from rung.server.errors import ApiError
from rung.server.protocol import Counts, Delta, Failed, Finished, Generate, ModelInfo, Question, Started, Step, Value

#: Nodes that a request may be lost on: it may be why they end.
_MOST_LOST = 8
#: Seconds that a request waits for a node while none is there.
_NODE_SECONDS = 30.0
#: Tokens of an answer of which nobody says how many there are, before any has ended, and the share of a new one.
_FIRST_TOKENS, _NEW_SHARE = 256, 0.1
#: Sentences about steps down of a node at most.
_MOST_STEPS = 20
#: Statuses of a node that another node may not have.
_OF_NODE = frozenset({500, 503})


class _ReplicaOnNode:
    """A node that computes this model: its deployment, its name, and what its answers' bytes depend on."""

    def __init__(self, deployment: Deployment, name: str, state: ReplicaState) -> None:
        assert state.model is not None
        self.deployment, self.name, self.state, self.model = deployment, name, state, state.model
        self.lost = asyncio.Event()

    @property
    def bytes_of(self) -> tuple[object, ...]:
        """Return a value that is equal for nodes that give the same bytes."""
        model = self.model
        if not model.same_bytes:
            return (self.state.node,)
        return self.deployment.device_class, model.format, tuple(model.devices), model.lower_level, self.state.level


class FleetEngine:
    """One model on the nodes that have it. ``on_note`` is called with sentences for whoever started the fleet,
    ``on_failure`` with Ray's id of a node on which an answer failed, and why."""

    def __init__(
        self,
        name: str,
        on_note: Callable[[str], None],
        on_failure: Callable[[str, str], None] = lambda node, cause: None,
    ) -> None:
        self.name, self._on_note, self._on_failure = name, on_note, on_failure
        self.keep_alive = math.inf
        self.failed: Failed | None = None
        self.adapters: dict[int, float] | None = None
        self.router = Router()
        self._replicas: dict[str, _ReplicaOnNode] = {}
        self._ids = itertools.count(1)
        self._begun: dict[int, asyncio.Future[Node]] = {}
        self._change = asyncio.Event()
        self._tokens = float(_FIRST_TOKENS)
        #: Sentences about what ran slower on a node than it could, or with other bytes, by the node's name.
        self._steps: dict[str, dict[str, None]] = {}

    # ---- nodes

    def set_node(self, deployment: Deployment, node: str, name: str, state: ReplicaState) -> None:
        """Note what the replica on a node says of itself."""
        self.failed = state.failed if not self._replicas else None
        known = self._replicas.get(node)
        if state.model is None or state.rates is None:
            self.lose(node)
            return
        if known is not None and known.state.process == state.process:
            return
        self.lose(node)
        self._replicas[node] = _ReplicaOnNode(deployment, name, state)
        self.failed = None
        rates = Rates(state.rates.prefill, state.rates.decode, state.rates.decode_sum, state.rates.latency)
        self.router.add(Node(node, state.model.parallel, rates))
        room = f"{state.model.parallel} answers at once, context {state.model.context:,}"
        self._on_note(f"{self.name} is ready on {name}: {state.model.format}, {room}")
        self._changed()

    def set_rates(self, node: str, found: RatesReport) -> None:
        """Note what a node was measured at once more."""
        replica, known = self._replicas[node], self.router.nodes[node]
        replica.state = msgspec.structs.replace(replica.state, rates=found)
        known.rates, known.speed = Rates(found.prefill, found.decode, found.decode_sum, found.latency), 1.0

    def rates_of(self, node: str) -> tuple[RatesReport, float] | None:
        """Return the rates of a node and the share of them that its answers say; None where these said nothing yet."""
        replica, known = self._replicas.get(node), self.router.nodes.get(node)
        if replica is None or known is None or not known.windows or replica.state.rates is None:
            return None
        return replica.state.rates, known.speed

    def lose(self, node: str) -> None:
        """Note that a node does not compute any more; what it computed goes on elsewhere."""
        self.router.remove(node)
        if (replica := self._replicas.pop(node, None)) is not None:
            self._on_note(f"{replica.name} is lost for {self.name}.")
            replica.lost.set()
            self._changed()

    async def drain(self, node: str) -> None:
        """Give a node nothing more, and return when its answers have ended."""
        if (known := self.router.nodes.get(node)) is not None:
            known.is_draining = True
            while known.running and node in self._replicas:
                await self._change.wait()
            self.lose(node)

    def status_on(self, node: str, state: ReplicaState | None) -> ModelStatus:
        """Return how this model is on a node."""
        known, replica = self.router.nodes.get(node), self._replicas.get(node)
        if known is None or replica is None:
            failed = None if state is None else state.failed
            return ModelStatus(self.name, "loading" if failed is None else failed.cause)
        running, model = sum(job.answers for job in known.running.values()), replica.model
        facts = model.format, model.memory, model.context, known.slots, running, replica.state.rates
        state_word, steps = "leaving" if known.is_draining else "ready", list(self._steps.get(replica.name, ()))
        return ModelStatus(self.name, state_word, *facts, known.speed, steps=steps)

    def _note_step(self, node: str, sentence: str) -> None:
        """Note a step down on a node, once, and say it."""
        known = self._steps.setdefault(node, {})
        if sentence not in known and len(known) < _MOST_STEPS:
            known[sentence] = None
            self._on_note(f"{self.name} on {node}: {sentence}")

    def _changed(self) -> None:
        """Begin the requests that can, and have everybody look again who waits for something here."""
        for job, node in self.router.assign(time.monotonic()):
            begun = self._begun.pop(job.number)
            if not begun.done():
                begun.set_result(node)
        self._change.set()
        self._change = asyncio.Event()

    # ---- as endpoints know models

    @property
    def model(self) -> ModelInfo | None:
        """Return the model, with the answers that all nodes compute at once."""
        models = [replica.model for replica in self._replicas.values()]
        if not models:
            return None
        devices = list(
            dict.fromkeys(f"{each.name}:{d}" for each in self._replicas.values() for d in each.model.devices)
        )
        together = {"parallel": sum(each.parallel for each in models), "memory": sum(each.memory for each in models)}
        context = min(each.context for each in models)
        return msgspec.structs.replace(models[0], devices=devices, context=context, **together)

    @property
    def positions(self) -> dict[int, int]:
        """Return how many answers come before requests that wait for a node, by id."""
        return self.router.positions()

    @property
    def memory(self) -> Mapping[str, int]:
        """Return the most bytes that it takes, by node."""
        return {replica.name: replica.model.memory for replica in self._replicas.values()}

    @property
    def is_ready(self) -> bool:
        """Return whether a node computes it."""
        return bool(self._replicas)

    @property
    def is_loaded(self) -> bool:
        """Return that it is loaded, or is being loaded."""
        return True

    @property
    def is_starting(self) -> bool:
        """Return whether no node computes it yet."""
        return not self._replicas

    @property
    def expires(self) -> float | None:
        """Return that it stays."""
        return None

    def keep(self, seconds: float) -> None:
        """Keep it: models of a fleet stay loaded."""

    async def wait_ready(self, limit: float | None = _NODE_SECONDS) -> ModelInfo:
        """Return the model once a node computes it. Raises ``ApiError`` (503) where none does in time."""
        try:
            async with asyncio.timeout(limit):
                while (found := self.model) is None:
                    await self._change.wait()
                return found
        except TimeoutError:
            reason = "" if self.failed is None else f" ({self.failed.cause})"
            raise ApiError(503, f"No node has {self.name}{reason}.", code="model_loading", retry_after=10) from None

    async def counts(self) -> Counts:
        """Return how many answers are computed and wait."""
        running = [job for node in self.router.nodes.values() for job in node.running.values()]
        return Counts(sum(job.answers for job in running), self.router.waiting, 0, 0)

    async def ask(self, question: Question) -> Any:
        """Return the answer to a question, of any node. Raises ``ApiError``."""
        for _ in range(_MOST_LOST):
            await self.wait_ready()
            replica = next(iter(self._replicas.values()), None)
            if replica is None:
                continue
            try:
                found = await replica.deployment.ask(question, replica.state.node)
            except NodeLost:
                self.lose(replica.state.node)
                continue
            if isinstance(found, Failed):
                raise ApiError.of_failure(found)
            assert isinstance(found, Value)
            return found.value
        raise ApiError(503, "The nodes were lost that this was asked of.", code="engine_ended", retry_after=1)

    async def generate(self, request: Generate, take: TakeNow = take_none) -> AsyncGenerator[Event]:
        """Yield what comes of a request. Where its node is lost another one goes on after the tokens that came: with
        the same bytes in one class of devices. Raises ``ApiError``."""
        request.id = next(self._ids)
        replay = Replay(with_seed(request))
        job = self._job(request)
        before: _ReplicaOnNode | None = None
        while not replay.is_over:
            replica = await self._choose_replica(job)
            if before is not None and before.bytes_of != replica.bytes_of:
                replay.step_down()
                self._note_step(replica.name, f"answers of {before.name} went on here, with other bytes")
            before = replica
            try:
                async with aclosing(self._events(replica, replay, job)) as events:
                    async for event in events:
                        if not (isinstance(event, Delta) and take(event)):
                            yield event
            except NodeLost:
                job.lost_on.add(replica.state.node)
                if len(job.lost_on) > _MOST_LOST:
                    raise ApiError(503, "Each node was lost that computed this.", code="engine_ended") from None
            finally:
                self._end(replica, job)

    def _job(self, request: Generate) -> Job:
        """Return a request as the router knows it."""
        text = str(request.messages) if request.messages else "".join(map(str, request.prompts))
        most = request.options.get("max_tokens")
        tokens = int(self._tokens) if most is None else most
        return Job(
            request.id, request.owner, max(len(text) // CHARACTERS, 1), tokens, request.answers, pieces=pieces_of(text)
        )

    async def _choose_replica(self, job: Job) -> _ReplicaOnNode:
        """Return the node where a request begins now. Raises ``ApiError`` where none is there for a while."""
        while True:
            begun = self._begun[job.number] = asyncio.get_running_loop().create_future()
            self.router.enter(job, first=bool(job.lost_on))
            try:
                self._changed()
                while not begun.done():
                    await asyncio.wait({begun}, timeout=_NODE_SECONDS)
                    if not begun.done() and not self._replicas:
                        raise ApiError(503, f"No node has {self.name}.", code="model_loading", retry_after=10)
                node = begun.result()
            finally:
                if not begun.done() or begun.cancelled():
                    self._begun.pop(job.number, None)
                    self.router.withdraw(job)
            if (replica := self._replicas.get(node.name)) is not None:
                return replica

    def _end(self, replica: _ReplicaOnNode, job: Job) -> None:
        """Note that a node computes a request no longer."""
        if (node := self.router.nodes.get(replica.state.node)) is not None:
            node.end(job, time.monotonic())
        self._changed()

    async def _events(self, replica: _ReplicaOnNode, replay: Replay, job: Job) -> AsyncGenerator[Event]:
        """Yield what a node adds to a request until it is over. Raises ``ApiError``, and ``NodeLost``."""
        async with aclosing(replica.deployment.generate(replay.go_on(), replica.state.node)) as found:
            while (event := await self._next(found, replica)) is not None:
                if isinstance(event, Failed):
                    if event.code == STAGE_LOST:
                        self.lose(replica.state.node)
                    if event.status in _OF_NODE and not event.code.startswith("context"):
                        if event.code != "model_loading":  # a process that is new there
                            self._on_failure(replica.state.node, event.cause)
                        raise NodeLost(replica.name)
                    raise ApiError.of_failure(event)
                if isinstance(event, Started):
                    if replay.begin():
                        yield event
                elif isinstance(event, Step):
                    for delta in event.deltas:
                        self._note_tokens(replica, job, len(delta.tokens))
                        replay.add(delta)
                        yield delta
                elif isinstance(event, Finished):
                    replay.end(event)
                    event.report["node"] = replica.name
                    for step in event.report.get("steps", ()):
                        what = f"{step['op']} from {step['rung']} to {step['to']}"
                        self._note_step(replica.name, f"{what} on {step['device']}: {step['reason']}")
                    self._tokens += _NEW_SHARE * (event.completion_tokens - self._tokens)
                    yield event

    async def _next(self, found: AsyncGenerator[Any], replica: _ReplicaOnNode) -> Any:
        """Return the next event, None at the end. Raises ``NodeLost``, also where others found out."""
        event = asyncio.ensure_future(anext(found, None))
        lost = asyncio.ensure_future(replica.lost.wait())
        try:
            await asyncio.wait({event, lost}, return_when=asyncio.FIRST_COMPLETED)
            if event.done():
                return event.result()
            raise NodeLost(replica.name)
        except NodeLost:
            self.lose(replica.state.node)
            raise
        finally:
            lost.cancel()
            if not event.done():
                event.cancel()
                await asyncio.wait({event})

    def _note_tokens(self, replica: _ReplicaOnNode, job: Job, tokens: int) -> None:
        if (node := self.router.nodes.get(replica.state.node)) is not None:
            node.add(job, tokens, time.monotonic())
