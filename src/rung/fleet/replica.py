"""A model on a node: an actor of Ray Serve with the engine client of ``rung serve`` and its child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError, RayTaskError

from rung.core.errors import RungError
from rung.core.settings import CPU_LEVEL
from rung.diagnosis import machine
from rung.diagnosis.explain import explain_log
from rung.fleet import ray_node, weights
from rung.fleet.keys.folder import Folder
from rung.fleet.messages import NodeLog, ReplicaState
from rung.fleet.weights import ModelFile
from rung.server import protocol
from rung.server.child.machines import STAGE_LOST
from rung.server.engine_client import EngineClient
from rung.server.errors import ApiError
from rung.server.model_pool import ModelPool
from rung.server.protocol import Delta, Failed, Generate, Load, Question, Step, Value

#: Bytes of a log that are read, and those of them that are shown; fixes that are shown.
_READ, _SHOWN, _FIXES = 2**18, 2**13, 3
#: How lines begin that Ray writes into the log of every process.
_OF_RAY = (":job_id:", ":actor_name:", ":task_name:")
#: The answer for a process that ended without a word, and what shows whether the system ended it.
_ENDED = "Its log has no error: somebody ended it, or the system did, for want of memory."
_BY_SYSTEM = "look whether the system ended it", "journalctl -k | grep -i 'killed process'"
_question = msgspec.msgpack.Decoder(Question)
_generate = msgspec.msgpack.Decoder(Generate)


class Replica:
    """Answer requests with one model. Requests and events are bytes of ``rung.server.protocol``; ``node`` of a call
    says which replica is meant, and is read by the request router of the caller."""

    def __init__(self, name: str, load: bytes, files: Sequence[ModelFile], source: Any) -> None:
        self._name, self._load = name, msgspec.msgpack.decode(load, type=Load)
        self._files, self._source = files, source
        self._node = ray.get_runtime_context().get_node_id()
        self._pool: ModelPool | None = None
        self._failed: Failed | None = None
        self._starting: asyncio.Task[None] | None = None
        #: Actors with the further layers, where the model is divided, and why one of them is lost.
        self._stages: Sequence[Any] = ()
        self._lost = ""

    async def state(self, node: str) -> bytes:
        """Return a ``ReplicaState``; the first call has the model loaded."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        engine = None if self._pool is None else self._pool.engines[self._name]
        failed = self._failed if engine is None else engine.failed
        model = engine.model if engine is not None and engine.is_ready else None
        if self._lost:
            model, failed = None, Failed(id=0, status=503, code=STAGE_LOST, cause=self._lost)
        found = ReplicaState(self._node, os.getpid(), model, failed, None, CPU_LEVEL.read())
        return msgspec.msgpack.encode(found)

    async def divide(self, load: bytes, stages: Sequence[Any], node: str) -> bytes:
        """Load the first layers of the model; ``stages`` are actors that have the others, in their order. Returns
        nothing."""
        if node != self._node:
            raise ApiError(503, "That is another node.", code="model_loading")
        if self._starting is not None:
            self._starting.cancel()
        if self._pool is not None:
            await self._pool.stop()
        self._pool = self._failed = None
        self._load, self._stages, self._lost = msgspec.msgpack.decode(load, type=Load), stages, ""
        self._starting = asyncio.create_task(self._start())
        return b""

    def _forward(self, batch: bytes, hidden: bytes) -> Awaitable[bytes]:
        """Have the other nodes compute a batch; each gets it from the one before."""
        found: Any = hidden
        for stage in self._stages:
            found = stage.compute.remote(batch, found)
        return self._behind(found, self._stages)

    async def _behind(self, found: Any, stages: Sequence[Any]) -> bytes:
        """Return the hidden states of the last of these nodes. Raises ``ConnectionError`` where one is lost."""
        try:
            hidden: bytes = await found
        except RayError as error:
            if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
                raise  # a node is there, and its computation failed
            if stages is not self._stages:
                raise ConnectionError("The model has been divided again.") from error
            self._lost = f"A node with layers of {self._name} is lost."
            raise ConnectionError(str(error).strip().splitlines()[0]) from error
        return hidden

    async def _start(self) -> None:
        """Fetch the model's files and load it."""
        try:
            path = await weights.fetch(self._files, self._source) if self._files else self._load.model
        except RungError as error:
            self._failed = Failed(id=0, status=503, code=error.code, cause=error.cause, facts=list(error.facts))
            return
        load = msgspec.structs.replace(self._load, model=str(path))
        self._pool = ModelPool({self._name: load}, memory=load.options.get("memory"))
        engine = self._pool.engines[self._name]
        engine.forward = self._forward if self._stages else None
        with contextlib.suppress(RungError):  # ``engine.failed`` has it
            await engine.loaded()

    def _engine(self, node: str) -> EngineClient:
        """Return the engine for a call of a node. Raises ``ApiError`` where it is not this one, or not loaded yet."""
        if self._pool is None or node != self._node:
            raise ApiError(503, "The model is not loaded on that node.", code="model_loading")
        return self._pool.engines[self._name]

    async def generate(self, request: bytes, node: str) -> AsyncGenerator[bytes]:
        """Yield frames of what comes of a ``Generate``; a refusal is a ``Failed`` at the end."""
        try:
            events = self._engine(node).generate(_generate.decode(request))
            async with aclosing(events):
                async for event in events:
                    yield protocol.frame(Step([event]) if isinstance(event, Delta) else event)
        except ApiError as error:
            yield protocol.frame(_failed(error))

    async def log(self, process: int, cause: str, node: str) -> bytes:
        """Return a ``NodeLog`` of a process that has, or had, the model on this node, whose failure has a cause."""
        if node != self._node:
            raise ApiError(503, "That is another node.", code="model_loading")
        log = await asyncio.to_thread(_log_of, process)
        if not log.strip() and process != os.getpid():
            return msgspec.msgpack.encode(NodeLog("", _ENDED, [_BY_SYSTEM]))
        return msgspec.msgpack.encode(await asyncio.to_thread(explained, log, cause, machine.this_machine()))

    async def ask(self, question: bytes, node: str) -> bytes:
        """Return a frame with the ``Value`` of a question, or ``Failed``."""
        try:
            return protocol.frame(Value(0, await self._engine(node).ask(_question.decode(question))))
        except ApiError as error:
            return protocol.frame(_failed(error))


def _log_of(process: int) -> str:
    """Return the end of what a process of Ray, and those that it started, wrote on this machine; empty where nothing is
    left."""
    folder = ray_node.logs(Folder.of_settings())
    found = b""
    for path in () if folder is None else sorted(folder.glob(f"worker-*-{process}.err")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(path.stat().st_size - _READ, 0))
            found += file.read(_READ)
    lines = found.decode("utf-8", "replace").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_OF_RAY))


def explained(log: str, cause: str, environment: Mapping[str, Any]) -> NodeLog:
    """Return the end of a log with what ``explain`` says of it and of a cause, on a machine with these facts."""
    found = explain_log([f"{log}\n{cause}\n".encode()], environment)
    shown = log.encode()[-_SHOWN:].decode("utf-8", "ignore")
    if found.cause is None or found.unsure:
        return NodeLog(shown, found.sentence if found.cause is None else f"Not sure. The likeliest: {found.sentence}")
    answer = f"{str(found.certainty).capitalize()}: {found.sentence}"
    return NodeLog(shown, answer, [(fix.text, fix.command or "") for fix in found.fixes[:_FIXES]])


def _failed(error: ApiError) -> Failed:
    return Failed(id=0, status=error.status, code=error.code or "", cause=error.message)
