"""A loaded language model: logits, text that goes on, and chat."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rung.core.errors import ContextTooLong, DeviceError, UsageError
from rung.core.text import count, quoted, size
from rung.core.types import Device, Plan, Report
from rung.core.value import FrozenDict
from rung.engine import process_memory
from rung.engine.chat import Template
from rung.engine.decoder import Decoder
from rung.engine.sampling import Sampler, Sampling
from rung.engine.stream import TextStream
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.engine.turns import Turns, new_owner
from rung.formats.codec import Floats
from rung.models.card import ModelCard
from rung.models.cards.network import NetworkCard
from rung.models.damage_check import find_damage
from rung.models.lookup import name_of
from rung.planning.network_spec import Subject
from rung.planning.solve import speed
from rung.planning.speed import Rates
from rung.planning.weight_plan_cache import WeightPlanCache
from rung.run.journal import Journal

if TYPE_CHECKING:
    from torch import Tensor

    from rung.engine.transformers_decoder import TransformersDecoder

Messages = Sequence[Mapping[str, str]]

#: Of a text of more characters than this for each token of the context only the beginning is looked at first. Blanks
#: and repeated signs apart, no text has tokens that long.
_CHARACTERS_A_TOKEN = 8


class Model:
    """A language model bound to the devices of its plan. Made by ``rung.load``.

    One answer is computed at a time; what earlier prompts and answers left in the cache is used again. An exception in
    the middle of a call (Ctrl-C) harms none of the calls after it, and several threads may use one model.
    """

    def __init__(
        self,
        card: ModelCard | NetworkCard,
        plan: Plan,
        devices: tuple[Device, ...],
        decoder: Decoder | TransformersDecoder,
        journal: Journal,
        tokenizer: Tokenizer,
    ) -> None:
        self.card = card
        self.plan = plan
        self.devices = devices
        self.tokenizer = tokenizer
        self._decoder = decoder
        self._turns = Turns()
        self._journal = journal
        self._measured: dict[str, float] = {}
        self._kitchen = WeightPlanCache(Subject.of_card(card))
        self._expected = Rates(plan.decode_rate, plan.prefill_rate)
        self._template = Template(card.chat_template, self.tokenizer.named) if card.chat_template else None
        self._ends = frozenset(card.end_tokens) | self.tokenizer.end_tokens
        journal.notes += [note for note in self.tokenizer.notes if note not in journal.notes]

    def __repr__(self) -> str:
        plan, places = self.plan, "+".join(placement.device for placement in self.plan.placements)
        held = size(plan.memory)
        return f"<Model {plan.model}: {plan.format} on {places}, {held}, context {plan.context:,}>"

    @property
    def report(self) -> Report:
        """Return what happened so far: steps down, rungs, predicted beside measured: of an answer, at its length."""
        predicted = {
            "memory_bytes": float(self.plan.memory),
            "decode_tokens_per_second": self._expected.decode,
            "prefill_tokens_per_second": self._expected.prefill,
        }
        measured = self._measured | {"memory_bytes": float(process_memory.peak_memory())}
        return self._journal.report(FrozenDict(predicted), FrozenDict(measured))

    def predict(self, prompt: int) -> Rates:
        """The tokens per second that are predicted of a prompt of so many tokens, and after it."""
        return speed(self._kitchen, self.plan, self.devices, prompt)

    @property
    def example(self) -> str:
        """The question that shows what the model can do: its own, else a plain one."""
        return str(self.card.metadata.get("rung.example", "Why is the sky blue?"))

    def logits(self, ids: Sequence[int] | str) -> Tensor | Floats:
        """f32 logits [positions, vocabulary] after each of the token ids, or of the tokens of a text.

        A tensor on the CPU; an array of NumPy where torch is not installed.
        Raises ``ContextTooLong`` above the plan's context and ``UsageError`` for no or unknown ids.
        """

        wanted = self._encode(ids, bos=True) if isinstance(ids, str) else list(ids)

        def compute(unchanged: bool) -> Tensor | Floats:
            self._decoder.cache.truncate(0)
            return self._decoder.logits(wanted)

        owner = new_owner()
        try:
            return self._turns.compute(owner, compute)
        finally:
            self._turns.end(owner)

    def generate(self, prompt: str, *, system: str | None = None, raw: bool = False, **options: Any) -> Generation:
        """The answer to a prompt, as an iterable of strings; ``options`` are those of ``chat``.

        With a chat template the prompt is a user turn; without one, or with ``raw``, the model continues it
        as it is. Raises ``ContextTooLong``, ``TemplateError``, ``UsageError``.
        """
        if self._template is None or raw:
            return self._start(self._encode(prompt, bos=True), options, goes_on=True)
        messages = [{"role": "system", "content": system}] if system else []
        return self.chat([*messages, {"role": "user", "content": prompt}], **options)

    def chat(self, messages: Messages | str, **options: Any) -> Generation:
        """The answer to messages ``{"role", "content"}``, as an iterable of strings; a text is one message of a user.

        Options: ``max_tokens temperature top_k top_p min_p repeat_penalty seed stop``; those left out or None
        are the checkpoint's own, else greedy. Raises ``UsageError`` for a model without a chat template.
        """
        return self._start(self._ids(_as_messages(messages)), options, goes_on=False)

    def fits(self, prompt: str | Messages, answer: int | None = None) -> bool:
        """Return whether a text that is continued, or messages, leave room for an answer of so many tokens, by default
        an eighth of the context."""
        return self.room_after(prompt) >= (max(self.plan.context // 8, 1) if answer is None else answer)

    def room_after(self, prompt: str | Messages) -> int:
        """Return how many tokens of the context a prompt leaves; below zero where it is longer than the context."""
        try:
            ids = self._encode(prompt, bos=True) if isinstance(prompt, str) else self._ids(prompt)
        except ContextTooLong:
            return -1
        return self.plan.context - len(ids)

    def _ids(self, messages: Messages) -> list[int]:
        if self._template is None:
            raise UsageError(
                f"{self.card.name} has no chat template: it continues text and holds no conversation.",
                (),
                ["generate(prompt, raw=True)", f'rung run {quoted(name_of(self.card.path))} --raw "Once upon a time"'],
                code="chat-template-missing",
            )
        text = self._template.render(messages)
        bos = self.tokenizer.named.get("bos_token", "")
        return self._encode(text, bos=not (bos and text.startswith(bos)))

    def _encode(self, text: str, bos: bool) -> list[int]:
        """Return the ids of a prompt. Raises ``ContextTooLong`` at once for one that is far too long: a megabyte takes
        some vocabularies 20 s."""
        most = _CHARACTERS_A_TOKEN * self.plan.context
        if len(text) > most:
            found = len(self.tokenizer.encode(text[:most], bos=bos))
            if found > self.plan.context:
                raise self._too_long(len(text) * found // most, "about ")
        return self.tokenizer.encode(text, bos=bos)

    def _too_long(self, tokens: int, about: str = "") -> ContextTooLong:
        wider = min(tokens + 256, self.card.context or tokens + 256)
        ways = [f"rung run {quoted(name_of(self.card.path))} --context {wider}"] if wider > tokens else []
        return ContextTooLong(
            f"The prompt has {about}{count(tokens, 'token')}, the context holds {self.plan.context:,}.",
            [f"{self.card.name} holds {self.card.context:,} at the most"] if self.card.context else [],
            [*ways, "a shorter prompt"],
        )

    def _start(self, ids: list[int], options: dict[str, Any], goes_on: bool) -> Generation:
        if len(ids) >= self.plan.context:
            raise self._too_long(len(ids))
        stop = tuple(options.pop("stop", None) or ())
        most = options.pop("max_tokens", None)
        sampling = Sampling.of(self.card.defaults, **options)
        text = TextStream(self.tokenizer, stop, start=not goes_on)
        return Generation(self, ids, Sampler(sampling, ids), text, most)


def _as_messages(given: Messages | str) -> Messages:
    """Return messages; a text is one of a user. Raises ``UsageError`` for what is none."""
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if isinstance(messages, Mapping) or not messages or not all(_is_message(each) for each in messages):
        raise UsageError(
            "Messages are a text, or a list of dictionaries with role and content.",
            (),
            ['model.chat("Hi")', 'model.chat([{"role": "user", "content": "Hi"}])'],
        )
    return messages


def _is_message(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(given.get(key), str) for key in ("role", "content"))


class Generation:
    """An answer while it is computed: an iterable of strings; ``result`` is set when it ends.

    ``on_read`` may be set before: it is called with (tokens read, tokens to read) while the prompt is read.
    """

    def __init__(self, model: Model, ids: list[int], sampler: Sampler, text: TextStream, most: int | None) -> None:
        self.result: dict[str, Any] = {}
        self.tokens: list[int] = []
        self.on_read: Callable[[int, int], None] = lambda done, total: None
        self._model, self._ids, self._most = model, ids, most
        self._sampler, self._text = sampler, text
        self._said: list[str] = []
        self._owner = new_owner()
        self._seconds = {"ready": 0.0, "prefill": 0.0, "first": 0.0, "decode": 0.0}
        self._fed, self._alone = 0, False
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def stop(self) -> dict[str, Any]:
        """Ends the answer here; returns the result so far."""
        self._pieces.close()
        if not self.result:
            self._finish("stopped")
        return self.result

    def _run(self) -> Generator[str, None, None]:
        try:
            yield from self._answer()
        finally:
            self._model._turns.end(self._owner)

    def _answer(self) -> Generator[str, None, None]:
        model, cache = self._model, self._model._decoder.cache
        started = time.perf_counter()
        logits = model._turns.compute(self._owner, self._prefill)
        reason = "end"
        while True:
            token = self._choose(logits)
            if not self._seconds["first"]:
                self._seconds["first"] = time.perf_counter() - started - self._seconds["ready"]
            if token in model._ends:
                break
            self.tokens.append(token)
            piece = self._text.push(token)
            if piece:
                self._said.append(piece)
                yield piece
            if self._text.stopped:
                reason = "stop"
                break
            if self._most is not None and len(self.tokens) >= self._most:
                reason = "length"
                break
            if len(self._ids) + len(self.tokens) > cache.context:
                reason = "context"
                break
            logits = model._turns.compute(self._owner, self._step)
        rest = self._text.finish()
        if rest:
            self._said.append(rest)
            yield rest
        self._finish(reason)

    def _prefill(self, unchanged: bool) -> Floats:
        """Read the prompt, or what the cache does not hold of it."""
        decoder = self._model._decoder
        kept = min(decoder.cache.shared(self._ids), len(self._ids) - 1)  # the last token's logits are needed
        decoder.cache.truncate(kept)
        self._fed = len(self._ids) - kept
        before = time.perf_counter()
        self._alone = not decoder.get_ready(self._fed)
        started = time.perf_counter()
        logits = decoder.prefill(self._ids[kept:], self.on_read)
        self._seconds["prefill"] = time.perf_counter() - started
        self._seconds["ready"] = started - before
        return logits

    def _step(self, unchanged: bool) -> Floats:
        """Logits after the last token."""
        if not unchanged:
            self._read_again()
        before = time.perf_counter()
        logits = self._model._decoder.step(self.tokens[-1])
        self._seconds["decode"] += time.perf_counter() - before
        return logits

    def _read_again(self) -> None:
        """Bring the cache to where this answer was, as it came there: prompt at once, then a token at a time."""
        decoder, held = self._model._decoder, [*self._ids, *self.tokens[:-1]]
        kept = decoder.cache.shared(held)
        decoder.cache.truncate(kept)
        if kept < len(self._ids):
            decoder.prefill(self._ids[kept:])
        for token in held[max(kept, len(self._ids)) :]:
            decoder.step(token)

    def _choose(self, logits: Floats) -> int:
        """The next token. Logits that are no numbers are most often a damaged file's: then that is said."""
        try:
            return self._sampler.choose(logits)
        except DeviceError as error:
            card = self._model.card
            raise (find_damage(card) if isinstance(card, ModelCard) else None) or error from None

    def _finish(self, reason: str) -> None:
        steps = max(len(self.tokens) - (reason != "end"), 0)
        decode = steps / self._seconds["decode"] if steps and self._seconds["decode"] else 0.0
        prefill = self._fed / self._seconds["prefill"] if self._seconds["prefill"] else 0.0
        decoding = self._model.predict(len(self._ids) + steps // 2).decode
        reading = decoding if self._alone else self._model.predict(self._fed).prefill
        self._model._expected = Rates(decoding, reading)
        self._model._measured |= {"decode_tokens_per_second": decode, "prefill_tokens_per_second": prefill}
        self.result.update(
            text="".join(self._said),
            tokens=list(self.tokens),
            prompt_tokens=len(self._ids),
            prefill_tokens_per_second=prefill,
            decode_tokens_per_second=decode,
            first_token_seconds=self._seconds["first"],
            stop_reason=reason,
            peak_memory_bytes=process_memory.peak_memory(),
            plan=self._model.plan.to_json(),
            report=self._model.report.to_json(),
        )
