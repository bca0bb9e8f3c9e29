"""Deployments of Ray Serve: a model on a class of devices, a replica on each node, and calls of a replica by node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rung.core.version import __version__
from rung.fleet.messages import CLASS_LABEL, NodeLog, RatesReport, ReplicaState
from rung.fleet.replica import Replica
from rung.fleet.router import Node
from rung.fleet.weights import ModelFile
from rung.hardware import json_cache
from rung.server import protocol
from rung.server.protocol import Failed, Finished, FromEngine, Generate, Load, ModelInfo, Question, Step

#: Calls that a replica takes at once: the router of the fleet decides how many there are.
_MOST_CALLS = 10_000
#: Seconds between two looks of Ray Serve whether a replica is well, that one has to end, and to explain a log.
_HEALTH_SECONDS, _STOP_SECONDS, _LOG_SECONDS = 5.0, 2.0, 30.0
#: Seconds in which an encoder that does nothing answers.
_REST_SECONDS = 2.0

#: Tokens of the prompt and of answers by which a node is measured, and those at most of several; answers at most, and
#: seconds that this takes at least and at most.
_PROMPT, _TOKENS, _MOST_TOKENS, _MOST_ANSWERS, _LEAST_SECONDS, _MEASURE_SECONDS = 64, 16, 64, 64, 1.0, 20.0
#: Seconds in which a node becomes as fast as it is at most, and how much faster later rounds of one that is are.
_SETTLE_SECONDS, _SETTLED = 6.0, 1.1
#: Tokens that say how fast a node is, and tokens a second where nothing says it: the router measures on.
_LEAST, _GUESS = 4, 20.0
#: Nodes of a class at most.
_MOST_NODES = 10_000


class NodeLost(Exception):
    """A node does not answer: what it computed is to be computed elsewhere."""


class ByNode(RequestRouter):
    """Send a call to the replica on the node that it names: the router of the fleet has chosen it."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replica of the node, then the others, which refuse: a call never waits here for a node."""
        node = "" if pending_request is None else pending_request.kwargs["node"]
        named = [each for each in candidate_replicas if each.node_id == node]
        return [named, [each for each in candidate_replicas if each.node_id != node]]


def count_nodes(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return how many replicas there are to be: the nodes of the class that a deployment's name ends with. Ray Serve
    calls it in its controller."""
    device_class = context.deployment_name.partition("-")[2]
    alive = [each for each in ray.nodes() if each["Alive"]]
    return max(sum(each["Labels"].get(CLASS_LABEL) == device_class for each in alive), 1), {}


class Deployment:
    """A model on a class of devices. Replicas come and go with the nodes of the class."""

    def __init__(self, model: str, device_class: str, load: Load, files: Sequence[ModelFile], source: Any) -> None:
        self.model, self.device_class, self._load = model, device_class, load
        self._files, self._source = list(files), source
        #: A name that Ray takes, whatever characters the model's has.
        self.name = f"{hashlib.sha256(model.encode()).hexdigest()[:8]}-{device_class}"
        self._handle: Any = None

    def start(self) -> None:
        """Have each node of the class run a replica, now and later."""
        deployment = serve.deployment(
            Replica,
            name=self.name,
            num_replicas="auto",
            autoscaling_config=AutoscalingConfig(
                min_replicas=1,
                max_replicas=_MOST_NODES,
                upscale_delay_s=0,
                downscale_delay_s=0,
                policy=AutoscalingPolicy(policy_function=count_nodes),
            ),
            max_replicas_per_node=1,
            logging_config={"log_level": "WARNING", "enable_access_log": False},  # else a line for each call
            max_ongoing_requests=_MOST_CALLS,
            health_check_period_s=_HEALTH_SECONDS,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=_STOP_SECONDS,
            ray_actor_options={"num_cpus": 0, "label_selector": {CLASS_LABEL: self.device_class}},
            request_router_config=RequestRouterConfig(request_router_class=ByNode),
        )
        bound = deployment.bind(self.model, msgspec.msgpack.encode(self._load), self._files, self._source)
        target = serve.RunTarget(bound, name=self.name, route_prefix=None)
        (self._handle,) = serve.run_many([target], wait_for_applications_running=False)

    def key(self, name: str, model: ModelInfo) -> dict[str, str]:
        """Return the facts on which the rates of a node depend: its name and devices, the model's files, its room."""
        files = " ".join(file.sha256 for file in self._files) or self._load.model
        room = f"{model.parallel} {model.context} {self._load.options.get('threads')}"
        facts = {"node": name, "class": self.device_class, "devices": " ".join(model.devices), "room": room}
        facts["facts"] = " ".join(RatesReport.__struct_fields__)  # of another rung there may be others
        return {"kind": "fleet-rates", "model": files, "format": model.format, "rung": __version__, **facts}

    async def state(self, node: str, seconds: float) -> ReplicaState:
        """Return the state of the replica on a node. Raises ``NodeLost`` where none answers in time."""
        data = await self._call("state", seconds, node=node)
        found = msgspec.msgpack.decode(data, type=ReplicaState)
        if found.node != node:
            raise NodeLost(node)
        return found

    async def ask(self, question: Question, node: str) -> FromEngine:
        """Return the ``Value`` of a question, or ``Failed``. Raises ``NodeLost``."""
        data = await self._call("ask", None, msgspec.msgpack.encode(question), node=node)
        return protocol.read_from_engine(data[protocol.HEADER :])

    async def log(self, process: int, cause: str, node: str) -> NodeLog:
        """Return the log of a process that had the model on a node, explained there. Raises ``NodeLost``."""
        data = await self._call("log", _LOG_SECONDS, process, cause, node=node)
        return msgspec.msgpack.decode(data, type=NodeLog)

    async def divide(self, load: Load, stages: Sequence[ActorHandle], node: str) -> None:
        """Have the replica on a node load the first layers; ``stages`` have the others. Raises ``NodeLost``."""
        await self._call("divide", None, msgspec.msgpack.encode(load), list(stages), node=node)

    async def _call(self, method: str, seconds: float | None, *arguments: Any, node: str) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                found: bytes = await getattr(self._handle, method).remote(*arguments, node=node)
                return found
        except (RayError, RayServeException, TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise
            raise NodeLost(node) from error

    async def generate(self, request: Generate, node: str) -> AsyncGenerator[FromEngine]:
        """Yield what comes of a request on a node. Raises ``NodeLost``; where it is closed before, the request is
        canceled there."""
        stream = self._handle.options(stream=True).generate.remote(msgspec.msgpack.encode(request), node=node)
        is_over = False
        try:
            async for data in stream:
                yield protocol.read_from_engine(data[protocol.HEADER :])
            is_over = True
        except (RayError, RayServeException) as error:
            is_over = True
            raise NodeLost(node) from error
        finally:
            if not is_over:
                stream.cancel()


#: Measures the replica on a node.
Measuring: TypeAlias = Callable[[Deployment, ModelInfo, str], Coroutine[Any, Any, RatesReport]]
#: Says for how many seconds no encoder has worked on a node.
Resting: TypeAlias = Callable[[str], Coroutine[Any, Any, float]]


class Speeds:
    """The rates of replicas: those that an earlier run or process left, by node, class and model; else measured.
    All are measured again when nothing has computed on their node for some seconds: processes of Ray begin at the same
    time. What is kept for the next run is that second measurement. A node has one measurement at a time."""

    def __init__(self, measuring: Measuring | None = None, idle: float = 10.0, resting: Resting | None = None) -> None:
        self._measure, self._idle, self._rest = measuring or measure, idle, resting or encoder_rest
        self._found: dict[tuple[str, str, int], asyncio.Future[RatesReport]] = {}
        #: Second measurements, and from when on they may begin (seconds of the monotonic clock).
        self._second: dict[tuple[str, str, int], asyncio.Task[RatesReport | None]] = {}
        self._from: dict[tuple[str, str, int], float] = {}
        #: What the first process of a replica was measured at, for the next one of this run.
        self._of_first: dict[tuple[str, ...], RatesReport] = {}

    @property
    def tasks(self) -> list[asyncio.Future[Any]]:
        """Return the measurements, those that have ended too."""
        return [*self._found.values(), *self._second.values()]

    def forget(self, model: str) -> None:
        """Forget the rates of a model: it lies on other nodes."""
        self._found = {key: rates for key, rates in self._found.items() if key[0] != model}

    def of(self, deployment: Deployment, state: ReplicaState, name: str, is_divided: bool) -> RatesReport | None:
        """Return the rates of the replica on a node of this name; None while it is measured, or waits for another."""
        assert state.model is not None
        key = deployment.model, state.node, state.process
        known = self._found.get(key)
        if known is None or (known.done() and known.exception() is not None):
            facts = deployment.key(name, state.model)
            kept = None if is_divided else _kept(facts) or self._of_first.get(tuple(facts.values()))
            if kept is None and self._is_measuring(state.node):
                return None
            known = asyncio.ensure_future(
                self._measure(deployment, state.model, state.node) if kept is None else _at_once(kept)
            )
            self._found[key] = known
            if not is_divided:
                self._from[key] = math.inf
        if not known.done():
            return None
        if self._from.get(key) == math.inf:
            self._from[key] = time.monotonic() + self._idle
            self._of_first[tuple(deployment.key(name, state.model).values())] = known.result()
        return known.result()

    def again(
        self, deployment: Deployment, state: ReplicaState, name: str, node: Node, is_idle: bool
    ) -> RatesReport | None:
        """Return the rates of a replica once they are measured a second time, and keep them for the next run; else
        None. That begins where nobody has computed on the machine for a while, and ends where somebody does
        (``is_idle`` is False)."""
        key = deployment.model, state.node, state.process
        if key not in self._from or state.model is None:
            return None
        if node.windows or not is_idle:
            self._from[key] = time.monotonic() + self._idle
            if (second := self._second.pop(key, None)) is not None:
                second.cancel()
            if node.windows:  # answers have said it
                del self._from[key]
            return None
        if (second := self._second.get(key)) is None:
            if time.monotonic() > self._from[key] and not self._is_measuring(state.node):
                self._second[key] = asyncio.ensure_future(self._alone(deployment, state.model, state.node))
            return None
        if not second.done():
            return None
        del self._second[key]
        found = None if second.cancelled() or second.exception() is not None else second.result()
        if found is None:  # something else computed there
            self._from[key] = time.monotonic() + self._idle
            return None
        del self._from[key]
        self._found[key] = asyncio.ensure_future(_at_once(found))
        json_cache.write(deployment.key(name, state.model), msgspec.to_builtins(found))
        return found

    def _is_measuring(self, node: str) -> bool:
        """Return whether a replica on a node is measured now."""
        several: list[tuple[tuple[str, str, int], asyncio.Future[Any]]] = [*self._found.items()]
        return any(key[1] == node and not task.done() for key, task in [*several, *self._second.items()])

    async def _alone(self, deployment: Deployment, model: ModelInfo, node: str) -> RatesReport | None:
        """Return the rates of a replica; None where an encoder works beside it, or did a moment ago."""
        begun = time.monotonic()
        if await self._rest(node) < self._idle:
            return None
        found = await self._measure(deployment, model, node)
        return found if await self._rest(node) > time.monotonic() - begun else None


async def _at_once(kept: RatesReport) -> RatesReport:
    """Return rates that are known."""
    return kept


def _kept(key: dict[str, str]) -> RatesReport | None:
    """Return the rates that an earlier run kept; None where there are none, or what is there is no rates."""
    try:
        return msgspec.convert(json_cache.read(key), RatesReport)
    except msgspec.ValidationError:
        return None


def keep(deployment: Deployment, name: str, model: ModelInfo, rates: RatesReport, speed: float) -> None:
    """Keep the rates of a node for the next run: half of what was known, and half of what answers say it does now."""
    key = deployment.key(name, model)
    known = _kept(key) or rates
    names = ("prefill", "decode", "decode_sum")
    now = {each: (getattr(known, each) + speed * getattr(rates, each)) / 2 for each in names}
    json_cache.write(key, msgspec.to_builtins(msgspec.structs.replace(rates, **now)))


async def measure(deployment: Deployment, info: ModelInfo, node: str) -> RatesReport:
    """Return the rates of a prompt, of one answer, and of answers in all slots on a node; a guess where answers ended
    too early to say.

    They come over Ray as those of clients do: what a token costs on the way is the node's, too. Raises ``NodeLost``.
    """
    if not info.writes:
        return RatesReport(_GUESS, _GUESS, _GUESS)
    alone = await _rounds(deployment, node, 1, _TOKENS)
    decode = _tokens_per_second(alone) or _GUESS
    tokens = min(max(int(decode * _LEAST_SECONDS), _TOKENS), _MOST_TOKENS)
    together = await _rounds(deployment, node, min(info.parallel, _MOST_ANSWERS), tokens)
    if not alone or not together:
        return RatesReport(_GUESS, _GUESS, _GUESS)
    reading = sum(each.prompt_seconds for each in alone)
    prefill = _PROMPT * len(alone) / reading if reading else decode
    most = max(_tokens_per_second(together) or decode, decode)
    latency = statistics.median(each.latency for each in alone)
    return RatesReport(prefill, decode, most, alone[-1].predicted, latency)


class _Round(NamedTuple):
    """Answers that were computed together: the tokens that came while all of them were written, in so many seconds;
    the seconds of their prompts, the tokens a second that were predicted of one alone, and the seconds to the first
    token of the first one that its prompt did not take."""

    tokens: int
    seconds: float
    prompt_seconds: float
    predicted: float
    latency: float


async def _rounds(deployment: Deployment, node: str, count: int, tokens: int) -> list[_Round]:
    """Return the later half of rounds of so many answers of so many tokens that are computed together; none where one
    takes too long.

    They go on for ``_LEAST_SECONDS``, since a processor with a quota is as fast as one without for the first moments,
    and as long as they become faster: a process that has begun compiles while it answers.
    """
    rounds: list[_Round] = []
    begun = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MEASURE_SECONDS):
            while True:
                rounds.append(await _round(deployment, node, count, tokens, len(rounds)))
                seconds, half = time.monotonic() - begun, len(rounds) // 2
                before, now = (_tokens_per_second(each) or 0.0 for each in (rounds[:half], rounds[half:]))
                if seconds > _SETTLE_SECONDS or (seconds > _LEAST_SECONDS and 0 < now < _SETTLED * before):
                    break
    return rounds[len(rounds) // 2 :]


async def _round(deployment: Deployment, node: str, count: int, tokens: int, number: int) -> _Round:
    """Return a round of so many answers to one prompt, which is another in each round."""
    prompts: list[Any] = [[5 + (count + 7 * number + k) % 90 for k in range(_PROMPT)]]
    several = [{"max_tokens": tokens, "temperature": 1.0, "seed": seed} for seed in range(count)]
    requests = [Generate(prompts=prompts, options=options, owner="measure") for options in several]
    sent = time.monotonic()
    found = await asyncio.gather(*(_answer(deployment, request, node) for request in requests))
    reading = sum(each.prompt_seconds for _, each in found)
    predicted = found[0][1].report.get("predicted", {}).get("decode_tokens_per_second")
    all_came = [each for came, _ in found for each in came]
    begin = max((came[0][0] for came, _ in found if came), default=0.0)
    end = min((came[-1][0] for came, _ in found if came), default=0.0)
    written = sum(count for time, count in all_came if begin < time <= end)
    if written < _LEAST and all_came:  # some ended before others began
        begin, end = min(all_came)[0], max(all_came)[0]
        written = sum(count for time, count in all_came if time > begin)
    came, first = found[0]
    latency = max(came[0][0] - sent - first.prompt_seconds, 0.0) if came else 0.0
    return _Round(written, end - begin, reading, predicted or 0.0, latency)


async def _answer(deployment: Deployment, request: Generate, node: str) -> tuple[list[tuple[float, int]], Finished]:
    """Return when how many tokens of an answer came, and its end. Raises ``NodeLost``."""
    came: list[tuple[float, int]] = []
    async for event in deployment.generate(request, node):
        if isinstance(event, Step):
            came.append((time.monotonic(), sum(len(delta.tokens) for delta in event.deltas)))
        if isinstance(event, Finished):
            return came, event
        if isinstance(event, Failed):
            raise NodeLost(node)
    raise NodeLost(node)


def _tokens_per_second(rounds: Sequence[_Round]) -> float | None:
    """Return the tokens a second of rounds of answers, None where these were too short to say."""
    tokens, seconds = sum(each.tokens for each in rounds), sum(each.seconds for each in rounds)
    return tokens / seconds if tokens >= _LEAST and seconds else None


def actor_on(node: str, kind: type, *arguments: Any, **options: Any) -> ActorHandle:
    """Return an actor on a node of Ray, with further options of Ray."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=strategy, **options)(kind).remote(*arguments)


def encoder_options(node: str) -> dict[str, str]:
    """Return Ray's name and namespace of the encoder on a node, which commands of the same rung share."""
    return {"name": f"encoder {__version__} {node}", "namespace": "rung"}


async def encoder_rest(node: str) -> float:
    """Return for how many seconds no command has had the encoder on a node, in which it has nothing to do: 0.0 where it
    is too busy to say, infinity where there is none."""
    try:
        encoder = await asyncio.to_thread(ray.get_actor, **encoder_options(node))
        async with asyncio.timeout(_REST_SECONDS):
            return float(await encoder.rest.remote())
    except ValueError:  # nobody has that name
        return math.inf
    except TimeoutError:
        return 0.0
    except RayError:  # it has ended
        return math.inf
