"""The process that has a model; a socket is its standard input.

One thread computes: it advances all answers together and sends what each step gave. One reads requests, and a few
prepare them (template, token ids), so that nobody's step waits for a long prompt of another. The process ends with the
socket.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.core.errors import (
    DeviceError,
    DeviceLost,
    NoRung,
    OutOfMemory,
)
from rung.core.settings import CPU_LEVEL
from rung.core.text import size
from rung.core.types import Device, Plan, StepClass, StepDown
from rung.engine.chat import reasoning
from rung.engine.embeddings.encoder import EncoderModel
from rung.engine.generation import Generation
from rung.engine.load import load
from rung.engine.model import Model
from rung.engine.planning import smaller_budgets
from rung.engine.sampling import TokenMask, logprob_entry
from rung.engine.scheduling.stages import Split
from rung.kernels.cpu import target
from rung.models.card import ModelCard
from rung.models.files.gguf import identity
from rung.models.store import folder
from rung.planning.request import Memory
from rung.server import protocol
from rung.server.child import reports, sandbox
from rung.server.child.machines import Machines
from rung.server.child.reports import failure
from rung.server.child.requests import ScaledAdapters, biases, ids_of, prompt_ids, template_kwargs, thinking
from rung.server.child.slots import Slots
from rung.server.child.waiting import count_fitting, in_turn
from rung.server.protocol import (
    ActOnSlot,
    Behind,
    Cancel,
    Counts,
    Decode,
    Delta,
    Echo,
    Embed,
    Encode,
    Generate,
    Load,
    Note,
    Planned,
    Proceed,
    Progress,
    Queued,
    Ready,
    ReasoningOptions,
    Render,
    Started,
    Stats,
    Step,
    SteppedDown,
    Value,
)

if TYPE_CHECKING:
    from rung.server.child.grammars import Grammars

#: Threads that prepare requests.
_PREPARING = 2
#: Seconds that a step waits at most for messages to be handled, and in which their thread can go on.
_SETTLE_SECONDS, _GIVE_WAY_SECONDS = 0.02, 0.00005
#: Exit status where a process cannot go on: a new one may.
LOST = 75


class Channel:
    """The socket to the HTTP process; any thread may send, one reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._is_handling = False

    def send(self, message: protocol.FromEngine) -> None:
        """Send a message whole. Ends the process where nobody reads any more."""
        try:
            with self._lock:
                self._connection.sendall(protocol.frame(message))
        except OSError:
            os._exit(0)

    def messages(self) -> Iterator[protocol.ToEngine]:
        """Yield messages until the other side closes."""
        while header := self._exactly(protocol.HEADER):
            self._is_handling = True  # before the rest is taken from the socket: see ``settle``
            yield protocol.read_to_engine(self._exactly(protocol.length(header)))
            self._is_handling = False

    def settle(self) -> None:
        """Wait until the thread that reads has handled all messages that came, for ``_SETTLE_SECONDS`` at most. It
        waits for the interpreter else, maybe for the time of several steps."""
        until = time.monotonic() + _SETTLE_SECONDS
        while self._is_handling or select.select([self._connection], [], [], 0)[0]:
            if time.monotonic() > until:
                return
            time.sleep(_GIVE_WAY_SECONDS)

    def _exactly(self, count: int) -> bytes:
        """Return so many bytes, or none where the other side has closed."""
        parts = bytearray()
        while len(parts) < count:
            try:
                data = self._connection.recv(count - len(parts))
            except ConnectionError:  # it closed before it had read all
                return b""
            if not data:
                return b""
            parts += data
        return bytes(parts)


@dataclass
class _Request:
    """A request that is answered; ``cancelled`` before its answers begin, or while they are computed."""

    message: Generate
    cancelled: bool = False
    answers: list[_Answer] = field(default_factory=list)

    def cancel(self) -> None:
        """End all answers. Any thread may call."""
        self.cancelled = True
        for answer in list(self.answers):
            answer.generation.sequence.end("stopped")


@dataclass(eq=False)
class _Answer:
    """One answer of a request: the tokens that its cache must have room for, how many were sent, its slot, and the
    tokens of its prompt that it was said to have read (-1: nothing was said)."""

    request: _Request
    index: int
    generation: Generation
    room: int
    sent: int = 0
    slot: int = -1
    read: int = -1

    @property
    def owner(self) -> str:
        """Return whose it is."""
        return self.request.message.owner


class EngineChild:
    """Answer requests with one model. ``machines`` have its other layers, if there are any."""

    def __init__(
        self,
        channel: Channel,
        model: Model,
        load: Load,
        adapters: ScaledAdapters,
        slots: Slots,
        machines: Machines,
    ) -> None:
        self._channel, self._model, self._system, self._adapters = channel, model, load.system, adapters
        self._slots, self._thinks, self._machines = slots, load.thinks, machines
        self._memory: Memory = load.options.get("memory")
        self._requests: dict[int, _Request] = {}
        self._ready: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._waiting: list[_Answer] = []
        self._live: list[_Answer] = []
        #: Who waited and who was computed when somebody was last admitted.
        self._last_queues: tuple[list[_Answer], list[_Answer]] = [], []
        self._positions: dict[int, int] = {}
        self._steps, self._busy = 0, 0
        self._pool = ThreadPoolExecutor(_PREPARING, "prepare")

    def read(self, messages: Iterator[protocol.ToEngine]) -> None:
        """Take requests until the other side closes, which ends the process."""
        for message in messages:
            if isinstance(message, Behind):
                self._machines.take(message)
            elif isinstance(message, Generate):
                request = self._requests[message.id] = _Request(message)
                self._pool.submit(self._guarded, message.id, partial(self._prepare, request))
            elif isinstance(message, Encode | Decode | Render | Embed | ActOnSlot):
                self._pool.submit(self._guarded, message.id, partial(self._answer, message))
            elif isinstance(message, Stats):
                self._channel.send(Value(message.id, self._counts()))
            elif isinstance(message, Cancel) and (known := self._requests.pop(message.id, None)):
                known.cancel()
        os._exit(0)

    def _counts(self) -> Counts:
        live = [answer.generation.sequence for answer in list(self._live)]
        processing = sum(sequence.cache is not None for sequence in live)
        waiting, guesses = len(live) - processing + len(self._waiting), (0, 0, 0)
        if isinstance(self._model, Model):
            scheduler = self._model.scheduler
            guesses = scheduler.guessing, scheduler.guessed, scheduler.guessed_right
        return Counts(processing, waiting, self._steps, self._busy, *guesses)

    def _answer(self, question: Encode | Decode | Render | Embed | ActOnSlot) -> None:
        """Answer a question that takes no steps of others. Raises ``RungError``."""
        model, tokenizer = self._model, self._model.tokenizer
        value: object
        match question:
            case Encode():
                ids = tokenizer.encode(question.text, special=question.special, bos=question.bos)
                value = {"ids": ids, "pieces": [tokenizer.piece(each) for each in ids]}
            case Decode():
                value = tokenizer.decode(question.tokens, special=True)
            case Render():
                value = self._render(question)
            case Embed():
                texts = [each if isinstance(each, str) else ids_of(model, each) for each in question.texts]
                found = model.embed(texts, truncate=question.truncate)
                tokens = sum(map(len, model.embedding_ids(texts)))
                value = {"vectors": [each.astype("<f4").tobytes() for each in found], "tokens": tokens}
            case ActOnSlot():
                value = self._slots.act(question)
        self._channel.send(Value(question.id, value))

    def _render(self, question: Render) -> dict[str, object]:
        """Return the text of messages, and how many tokens it has. Raises ``RungError``."""
        messages, kwargs = self._with_system(question.messages), thinking(self._thinks) | question.template_kwargs
        ending = {"begins_answer": question.begins_answer, "continues_last": question.continues_last}
        text = self._model.chat_text(messages, question.tools, kwargs, **ending)
        if not question.counts:
            return {"text": text}
        return {"text": text, "tokens": len(self._model.chat_ids(messages, question.tools, kwargs, **ending))}

    def _with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a conversation with the system prompt of the server, if it has none of its own."""
        if not self._system or any(each.get("role") == "system" for each in messages):
            return messages
        return [{"role": "system", "content": self._system}, *messages]

    def _guarded(self, number: int, call: Callable[[], None]) -> None:
        """Make a call for a request; whatever it raises is the answer."""
        try:
            call()
        except Exception as error:
            self._requests.pop(number, None)
            self._channel.send(failure(number, error))

    def _prepare(self, request: _Request) -> None:
        """Make the sequences of a request. Raises ``RungError``."""
        message, model = request.message, self._model
        self._slots.check(message.slot)
        chats = bool(message.messages)
        if chats:
            messages = self._with_system(message.messages)
            kwargs = {**thinking(self._thinks), **template_kwargs(model, message)}
            prompts = [model.chat_ids(messages, message.tools, kwargs, continues_last=message.continues_last)]
        else:
            prompts = [prompt_ids(model, each) for each in message.prompts]
        is_reasoning = chats and reasoning.is_open(model.tokenizer, prompts[0])
        adapter = self._adapters.name(message.adapters)
        options = {**message.options, "owner": message.owner, "adapter": adapter}
        if message.text_bias or message.ignore_end:
            options["logit_bias"] = biases(model, message)
        masks = self._masks(message, is_reasoning)
        for index, answered in enumerate(message.answered or [[]] * message.answers):
            if answered is not None:
                ids, choice, mask = prompts[index // message.n], index % message.n, masks()
                generation = model.start(ids, goes_on=not chats, choice=choice, mask=mask, answered=answered, **options)
                room = self._room(len(ids), message.options.get("max_tokens"))
                request.answers.append(_Answer(request, index, generation, room, len(answered)))
        if not request.cancelled:
            numbered = enumerate(prompts) if message.echo else ()
            echoes = [self._echo(message, number, ids, adapter) for number, ids in numbered]
            reasons = chats and model.has_reasoning
            self._channel.send(Started(message.id, sum(map(len, prompts)), echoes, reasons, is_reasoning))
            self._ready.put(request)

    def _masks(self, message: Generate, is_reasoning: bool) -> Callable[[], TokenMask | None]:
        """Return a factory for the mask of each answer: that of a grammar, else that of an end of reasoning."""
        if message.grammar is not None:
            return partial(self._grammars.mask, self._grammars.compile(message.grammar))
        options = message.reasoning
        thinks = self._thinks if options == ReasoningOptions() else options.enabled
        budget = 0 if thinks is False else options.budget
        if budget is None or not self._model.has_reasoning:
            return lambda: None
        vocabulary = self._model.backend.vocabulary
        return lambda: reasoning.ReasoningBudget(self._model.tokenizer, vocabulary, budget, is_reasoning)

    @cached_property
    def _grammars(self) -> Grammars:
        """Return the compiler of grammars; reading a vocabulary takes a moment."""
        from rung.server.child.grammars import Grammars

        return Grammars(self._model)

    def _echo(self, message: Generate, number: int, ids: list[int], adapter: str | None) -> Echo:
        """Return a prompt as it was given, with the log probabilities of its tokens if it names a number of them."""
        prompt, top = message.prompts[number], message.prompt_logprobs
        text = prompt if isinstance(prompt, str) else self._model.tokenizer.decode(ids, special=True)
        return Echo(text, None if top is None else self._model.logprobs(ids, top, adapter))

    def compute(self) -> None:
        """Compute answers for ever; no step begins for whoever has gone before it."""
        while True:
            self._channel.settle()
            self._drop_over()
            self._begin()
            try:
                self._model.scheduler.advance(*(each.generation.sequence for each in self._live))
            except Exception as error:
                self._fail(error)
            self._steps += 1
            self._busy += len(self._live)
            self._publish()

    def _room(self, prompt: int, most: int | None) -> int:
        """Return the tokens that an answer needs room for; where nobody says how many, its share of a context."""
        context = self._model.plan.context
        return min(prompt + (context // self._model.scheduler.parallel if most is None else most), context)

    def _begin(self) -> None:
        """Take on the answers for which the cache has room; wait for a request where nothing is computed."""
        while True:
            while not self._ready.empty():
                self._waiting += self._ready.get().answers
            self._admit()
            if self._live:
                return
            self._waiting += self._ready.get().answers

    def _admit(self) -> None:
        """Begin the answers that fit, and say how many come before the others."""
        waiting = [each for each in self._waiting if not each.request.cancelled]
        if (waiting, self._live) == self._last_queues:  # a step of the same answers gives nobody room
            return
        plan = self._model.plan
        turns = in_turn(waiting, self._live) if waiting else []
        count = count_fitting(turns, self._live, plan.context * plan.parallel, self._model.scheduler.parallel)
        for answer in turns[:count]:
            answer.generation.begin()
            slot = None if answer.index else answer.request.message.slot
            answer.slot = self._slots.take(slot, {each.slot for each in self._live})
            if answer.sent:
                answer.generation.take()  # what a process before this one has sent
            self._live.append(answer)
        self._waiting = turns[count:]
        self._last_queues = [*self._waiting], [*self._live]
        positions: dict[int, int] = {}
        for position, answer in enumerate(self._waiting):
            positions.setdefault(answer.request.message.id, position + 1)
        if positions != self._positions:
            self._channel.send(Queued(positions))
            self._positions = positions

    def _fail(self, error: Exception) -> None:
        """End all answers after a step that failed, or the process where a successor can go on with them."""
        if found := lower(self._model.plan, error, self._memory):
            self._channel.send(found)
            os._exit(LOST)
        for number in {answer.request.message.id for answer in self._live}:
            if self._requests.pop(number, None):
                self._channel.send(failure(number, error))
        for answer in self._live:
            answer.request.cancel()

    def _publish(self) -> None:
        """Send what the answers got longer by, and those that have ended."""
        deltas: list[Delta] = []
        ended: list[protocol.FromEngine] = []
        for answer in self._live:
            request, generation = answer.request, answer.generation
            try:
                pieces = generation.take()
            except Exception as error:
                if self._requests.pop(request.message.id, None):
                    ended.append(failure(request.message.id, error))
                request.cancel()
                continue
            if request.cancelled:
                continue
            if request.message.progress:
                self._report_reading(answer)
            if delta := self._delta(answer, "".join(pieces)):
                deltas.append(delta)
            if generation.result:
                self._slots.keep(answer.slot, generation.sequence)
                tokenizer = self._model.tokenizer
                ended.append(reports.finished(request.message, answer.index, answer.slot, generation, tokenizer))
        if deltas:
            self._channel.send(Step(deltas))
        for message in ended:
            self._channel.send(message)

    def _report_reading(self, answer: _Answer) -> None:
        """Say how far a prompt is read, where that is further than before; what was known comes first."""
        message, generation = answer.request.message, answer.generation
        now = reports.prompt_read(message, answer.index, generation)
        if answer.read < 0:
            answer.read = 0
            self._channel.send(reports.nothing_read(now))
        if now.times.read > answer.read:
            answer.read = now.times.read
            self._channel.send(now)

    def _drop_over(self) -> None:
        """Forget answers of which nothing more comes, and requests that have none left."""
        for answer in self._live:
            if answer.request.cancelled:
                self._model.scheduler.cancel(answer.generation.sequence)
        self._live = [each for each in self._live if not _is_over(each)]
        live_ids = {each.request.message.id for each in self._live}
        for number, request in list(self._requests.items()):
            if request.answers and number not in live_ids and all(map(_is_over, request.answers)):
                self._requests.pop(number, None)

    def _delta(self, answer: _Answer, text: str) -> Delta | None:
        """Return the new part of an answer, or None."""
        generation, message = answer.generation, answer.request.message
        before, answer.sent = answer.sent, len(generation.tokens)
        entries = None
        if chosen := generation.sequence.logprobs[before : answer.sent]:
            entries = [logprob_entry(each, self._model.tokenizer.piece) for each in chosen]
        tokens = generation.tokens[before:]
        if not (text or tokens):
            return None
        times = reports.times_of(generation) if message.times else None
        return Delta(message.id, answer.index, text, tokens, entries, times)


def _is_over(answer: _Answer) -> bool:
    """Return whether nothing more comes of an answer: its end was sent, or nobody wants it."""
    return bool(answer.generation.result) or answer.request.cancelled


def lower(plan: Plan, error: Exception, memory: Memory = None) -> SteppedDown | None:
    """Return the step down to load a process with after an error that ends this one; None for a bug, and where there is
    nothing less.

    A device that is lost or computes no numbers is left for the CPU. Where memory is short the next plan is a smaller
    one, as after a load that failed; ``memory`` are the budgets of this one.
    """
    device = next((each.device for each in plan.placements if each.device != "cpu"), "cpu")
    if isinstance(error, DeviceError | NoRung) and not isinstance(error, OutOfMemory) and device != "cpu":
        kind = StepClass.DEVICE_LOST if isinstance(error, DeviceLost) else StepClass.BROKEN
        step = StepDown("model", plan.format, device, kind, error.cause, "cpu")
        return SteppedDown(step.to_json(), {"device": "cpu", "memory": None})
    if isinstance(error, OutOfMemory):
        less = smaller_budgets(plan, memory)
        left = size(sum(less.get(each.device, each.budget) for each in plan.placements))
        step = StepDown("plan", plan.format, device, StepClass.OUT_OF_MEMORY, error.cause, left)
        return SteppedDown(step.to_json(), {"memory": less})
    return None


def _info(model: Model, adapters: ScaledAdapters, rights: str) -> protocol.ModelInfo:
    plan, encodes = model.plan, isinstance(model, EncoderModel)
    return protocol.ModelInfo(
        name=plan.model,
        format=plan.format,
        devices=[placement.device for placement in plan.placements],
        context=plan.context,
        parallel=1 if encodes else model.scheduler.parallel,
        vocabulary=model.tokenizer.size,
        memory=int(model.report.predicted["memory_bytes"]) + reports.REQUESTS_BYTES,
        chats=not encodes and bool(model.card.chat_template),
        writes=not encodes,
        family=model.card.decoder.model_type if isinstance(model.card, ModelCard) else "",
        template=str(getattr(model.card, "chat_template", None) or ""),
        same_bytes=encodes or model.backend.same_bytes,
        lower_level=next((each.name for each in target.lower_levels()), ""),
        adapters=adapters.loaded,
        sandbox=rights,
        files=_files(model),
    )


def _files(model: Model) -> str:
    """Return a name of a model's files, empty where they are gone by now."""
    try:
        return identity([Path(each) for each in getattr(model.card, "files", ())])
    except OSError:
        return ""


def _load(
    channel: Channel,
    message: Load,
    simulations: ExitStack,
    messages: Iterator[protocol.ToEngine],
    machines: Machines,
) -> Model:
    """Load a model. A card that is simulated is until ``simulations`` ends."""

    def wait_for_room(plan: Plan, devices: Sequence[Device]) -> None:
        more = {"cpu": reports.REQUESTS_BYTES}
        channel.send(Planned({each.device: each.memory.most + more.get(each.device, 0) for each in plan.placements}))
        if not isinstance(next(messages, None), Proceed):
            os._exit(0)  # nobody wants it any more

    if message.stored and (stored := folder.find(message.stored)) is not None:
        folder.mark_used(stored)
    options = dict(message.options)
    software = options.pop("software", None)
    if (options.get("device") or "").startswith("sim:"):
        options["device"] = _simulated(options["device"], software, simulations)
    if (max_kl := options.pop("max_kl", None)) is not None:
        options |= _within(channel, message.model, max_kl, options)
    model = load(
        message.model,
        **options,
        reserved=reports.REQUESTS_BYTES,
        split=Split(message.layers, machines.forward, message.stages) if message.layers else None,
        progress=lambda label, done, total: channel.send(Progress(label, done, total)),
        on_note=lambda text: channel.send(Note(text)),
        on_plan=wait_for_room,
        on_step=lambda step: channel.send(SteppedDown(step.to_json())),
    )
    if isinstance(model, Model):
        model.processor = None  # a new process goes on, for which the server has made room
        if message.template:
            model.use_template(message.template)
    return model


def _simulated(device: str, software: str | None, simulations: ExitStack) -> str | None:
    """Simulate a card, or several, until ``simulations`` ends; return the id of one card."""
    from rung.simulation.context import simulate

    simulation = simulate(device, software=software)
    card = simulations.enter_context(simulation)
    return str(card.id) if len(simulation.devices) == 1 else None


def _within(channel: Channel, model: str, max_kl: float, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that are chosen within a KL, and say which."""
    from rung.quantization import choose_within

    def progress(label: str, done: int, total: int) -> None:
        channel.send(Progress(label, done, total))

    found = choose_within(model, max_kl, {**options, "reserved": reports.REQUESTS_BYTES}, progress)
    channel.send(Note(found.words))
    return found.changes


def _warm_up(model: Model) -> None:
    """Compute and draw a token, so that the first request finds all kernels loaded."""
    if not isinstance(model, EncoderModel):
        # to its end: one that is left open is canceled by whichever thread collects it, which may be one that a step
        # waits for
        list(model.generate("a", raw=True, max_tokens=1, temperature=1.0, owner="warm up"))


def main() -> None:
    """Load the model that the first message names, and answer requests until the socket closes."""
    channel = Channel(socket.socket(fileno=0))
    messages = channel.messages()
    first = next(messages, None)
    assert isinstance(first, Load), "the first message names the model"
    if first.level:
        os.environ[CPU_LEVEL.variable] = first.level
    machines = Machines(channel.send, messages)
    with ExitStack() as simulations:
        try:
            model = _load(channel, first, simulations, messages, machines)
        except Exception as error:
            channel.send(failure(0, error))
            return
        _warm_up(model)
        rights = sandbox.enter(first, model)
        adapters = ScaledAdapters(model, first.options.get("adapters") or ())
        child = EngineChild(channel, model, first, adapters, Slots(model, first.slots), machines)
        machines.has_reader = True
        threading.Thread(target=child.read, args=(messages,), daemon=True, name="requests").start()
        channel.send(Ready(_info(model, adapters, rights)))
        child.compute()
