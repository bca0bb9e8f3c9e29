"""A loaded language model: logits, text that goes on, and chat."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property, partial
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

from rung.core.errors import ContextTooLong, DeviceError, DeviceLost, OutOfMemory, RungError, UsageError
from rung.core.shield import import_whole
from rung.core.text import count, quoted, size
from rung.core.types import Device, Plan, Report, StepClass, StepDown
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.engine.batches import Answer, as_completed
from rung.engine.chat import Template
from rung.engine.decoder import Decoder, check_ids
from rung.engine.embeddings import (
    DECODER_POOLINGS,
    check_empty,
    check_pooling,
    embed,
    ids_of,
    normalized,
    pooling_of,
    within,
)
from rung.engine.generation import Generation, TextStream
from rung.engine.sampling import CheckedMask, Sampler, Sampling, likeliest, logprob_entry
from rung.engine.scheduling.adapters import Adapters
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import LogitSequence, LogprobSequence, TokenSequence
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.formats.codec import Floats
from rung.kernels.webgpu import is_webgpu
from rung.models.card import ModelCard
from rung.models.cards.folder import NetworkCard
from rung.models.lookup import name_of
from rung.models.reader import find_damage
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.token_choice import Chosen, Row
from rung.planning.network_spec import Subject
from rung.planning.solve import speed
from rung.planning.speed import Rates
from rung.planning.weight_plan_cache import WeightPlanCache
from rung.run.binding import Binder, Sample
from rung.run.journal import Journal

if TYPE_CHECKING:
    from torch import Tensor

    from rung.engine.scheduling.speculator import Draft
    from rung.engine.transformers_decoder import TransformersDecoder

Messages = Sequence[Mapping[str, str]]

#: Of a text of more characters than this for each token of the context only the beginning is looked at first. Blanks
#: and repeated signs apart, no text has tokens that long.
_CHARACTERS_A_TOKEN = 8


class Model:
    """A language model bound to the devices of its plan. Made by ``rung.load``.

    Answers that are read at the same time, in one thread or several, are computed together. What earlier prompts and
    answers left in the cache is used again. An exception in the middle of a call (Ctrl-C) harms none of the calls after
    it.
    """

    def __init__(
        self,
        card: ModelCard | NetworkCard,
        plan: Plan,
        devices: tuple[Device, ...],
        backend: Decoder | TransformersDecoder,
        journal: Journal,
        tokenizer: Tokenizer,
        draft: Draft | None = None,
        more_memory: int = 0,
    ) -> None:
        self.card = card
        self.plan = plan
        self.devices = devices
        self.tokenizer = tokenizer
        self.backend = backend
        #: Loads the model on the processor, where answers go on after a device of WebGPU failed; None: that is raised.
        self.processor: Callable[[], tuple[Plan, tuple[Device, ...], Decoder]] | None = None
        replace = self._go_on_elsewhere if _gpu_of(plan) else None
        if getattr(backend, "depth", 1) > 1:  # steps are under way on several machines
            from rung.engine.scheduling.pipeline import PipelineScheduler

            self.scheduler: Scheduler = PipelineScheduler(backend, self._sample)
        else:
            self.scheduler = Scheduler(backend, self._sample, draft=draft, replace=replace)
        self._adapters: Adapters | None = None
        if isinstance(backend, Decoder) and isinstance(card, ModelCard):
            self._adapters = Adapters(card, plan, backend)
        self._journal, self._more_memory = journal, more_memory
        self._measured: dict[str, float] = {}
        self._plans = WeightPlanCache(Subject.of_card(card))
        self._expected = Rates(plan.decode_rate, plan.prefill_rate)
        self.template = Template(card.chat_template, self.tokenizer.named) if card.chat_template else None
        self._ends = frozenset(card.end_tokens) | self.tokenizer.end_tokens
        journal.notes += [note for note in self.tokenizer.notes if note not in journal.notes]

    @property
    def end_tokens(self) -> frozenset[int]:
        """Return the ids of the tokens that end an answer."""
        return self._ends

    def __repr__(self) -> str:
        plan, device_ids = self.plan, "+".join(placement.device for placement in self.plan.placements)
        memory = size(plan.memory)
        return f"<Model {plan.model}: {plan.format} on {device_ids}, {memory}, context {plan.context:,}>"

    @property
    def report(self) -> Report:
        """Return the report so far: steps down, rungs, predicted beside measured, at the length of the last answer."""
        adapters = self._adapters.nbytes if self._adapters else 0
        predicted = {
            "memory_bytes": float(self.plan.memory + self._more_memory + adapters),
            "decode_tokens_per_second": self._expected.decode,
            "prefill_tokens_per_second": self._expected.prefill,
        }
        measured = self._measured | {"memory_bytes": float(planning.peak_memory())}
        return self._journal.report(FrozenDict(predicted), FrozenDict(measured))

    def predict(self, prompt: int) -> Rates:
        """The tokens per second that are predicted of a prompt of so many tokens, and after it."""
        return speed(self._plans, self.plan, self.devices, prompt)

    def _sample(self, logits: Floats, rows: Sequence[Row]) -> list[Chosen]:
        """Choose a token of each row. The likeliest need no kernel, which takes time to load."""
        return likeliest(logits) if all(row.plain for row in rows) else self._sample_kernel(logits, rows)

    @cached_property
    def _sample_kernel(self) -> Sample:
        processor = next((device for device in self.devices if device.kind == "cpu"), self.devices[0])
        return Sample(Binder(processor, self._journal, threads=self.plan.threads))

    def _describe(self, sampler: Sampler, answer: Generation, reason: str) -> dict[str, Any]:
        """Return the result of an answer, and note its speed for ``report``."""
        sequence, seconds = answer.sequence, answer.sequence.seconds
        cached = sequence.cached or 0
        steps = max(len(answer.tokens) - (reason != "end") - sequence.uncomputed, 0)
        read = sequence.prompt - cached if answer.first_token_seconds else 0
        decode = steps / seconds["decode"] if steps and seconds["decode"] else 0.0
        prefill = read / seconds["prefill"] if seconds["prefill"] else 0.0
        expected = self.predict(sequence.prompt + steps // 2).decode
        one_by_one = isinstance(self.backend, Decoder) and self.backend.chunk(read) == 1
        self._expected = Rates(expected, expected if one_by_one else self.predict(read).prefill)
        self._measured |= {"decode_tokens_per_second": decode, "prefill_tokens_per_second": prefill}
        piece, entries = self.tokenizer.piece, sequence.logprobs[: len(answer.tokens)]
        more = {"logprobs": [logprob_entry(each, piece) for each in entries]} if sampler.wants_logprobs else {}
        return {
            **({"seed": sampler.seed} if sampler.seed is not None else {}),
            **more,
            "text": answer.text,
            "tokens": list(answer.tokens),
            "prompt_tokens": sequence.prompt,
            "cached_tokens": cached,
            "guessed_tokens": 0 if sequence.guesser is None else sequence.guesser.guessed,
            "accepted_tokens": 0 if sequence.guesser is None else sequence.guesser.accepted,
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": decode,
            "first_token_seconds": answer.first_token_seconds,
            "stop_reason": reason,
            "peak_memory_bytes": planning.peak_memory(),
            "plan": self.plan.to_json(),
            "report": self.report.to_json(),
        }

    def _explain(self, error: Exception) -> Exception:
        """Return the error to raise in place of ``error``. Logits that are no numbers are most often a damaged
        file's."""
        damage = None
        if isinstance(error, DeviceError) and isinstance(self.card, ModelCard):
            damage = find_damage(self.card)
        return damage or error

    def _go_on_elsewhere(self, error: Exception) -> Decoder:
        """Return a decoder on the processor after an error of the device, and report the step down.

        Raises that error where the processor has no room, and what is damaged where the file is.
        """
        if self.processor is None or (type(error) is DeviceError and self._explain(error) is not error):
            raise error
        device = _gpu_of(self.plan)
        self._journal.say(f"{device} failed: the processor reads the model and goes on with the answer")
        try:
            plan, devices, decoder = self.processor()
        except RungError as refusal:
            raise _with_fact(error, f"the processor cannot go on: {refusal.cause}") from refusal
        if self._adapters is not None:
            self._adapters.move(plan, decoder)
        self._journal.step(StepDown("model", self.plan.format, device, _class_of(error), _cause(error), "cpu"))
        self._journal.note(f"{device} is tried again by the next start; rung devices --probe says what it can do")
        self.plan, self.devices, self.backend, self.processor = plan, devices, decoder, None
        self._expected = Rates(plan.decode_rate, plan.prefill_rate)
        return decoder

    @property
    def example(self) -> str:
        """The question that shows what the model can do: its own, else a plain one."""
        return str(self.card.metadata.get("rung.example", "Why is the sky blue?"))

    def load_adapter(self, source: str | PathLike[str] | Sequence[str], adapter_name: str) -> None:
        """Read an adapter that answers may name: ``generate(prompt, adapter=adapter_name)``.

        Answers with different adapters are computed in one step. ``source`` is a PEFT folder or a GGUF file,
        ``DIR:0.5`` one of half its weight, or a list of such, whose changes are added. Answers that name none have what
        the model was loaded with; those that name one have that one alone, and ``__base__`` is the model without any.
        Raises ``UsageError`` for a name that is taken, for an adapter of another model or kind and for a network that
        transformers computes, ``BadFile``, and ``OutOfMemory`` where the plan's memory has no room for it.
        """
        sources = [str(source)] if isinstance(source, str | PathLike) else list(source)
        self._named_adapters.load(sources, adapter_name)

    def delete_adapter(self, adapter_name: str) -> None:
        """Forget an adapter; answers that have begun end with it. Raises ``UsageError`` for an unknown name."""
        self._named_adapters.delete(adapter_name)

    @property
    def _named_adapters(self) -> Adapters:
        if self._adapters is None:
            raise UsageError(
                f"{self.card.name} runs in transformers, where every answer has the same adapters.",
                (),
                [f'rung.load({name_of(self.card.path)!r}, adapters=["DIR"])'],
                code="adapter-unsupported",
            )
        return self._adapters

    def _adapter(self, name: str | None) -> BoundAdapter | None:
        return None if name is None else self._named_adapters.get(name)

    def logits(self, ids: Sequence[int] | str, adapter: str | None = None) -> Tensor | Floats:
        """f32 logits [positions, vocabulary] after each of the token ids, or of the tokens of a text.

        A tensor on the CPU; an array of NumPy where torch is not installed. ``adapter`` as ``chat`` takes it.
        Raises ``ContextTooLong`` above the plan's context and ``UsageError`` for no or unknown ids.
        """
        ids = self._encode(ids, bos=True) if isinstance(ids, str) else list(ids)
        check_ids(ids, self.backend.vocabulary)
        if len(ids) > self.backend.context:
            raise self._too_long(len(ids))
        sequence = LogitSequence(ids, self.backend.vocabulary)
        self._compute(sequence, adapter)
        if find_spec("torch") is None:
            return sequence.logits
        result: Tensor = import_whole("torch").from_numpy(sequence.logits)
        return result

    def logprobs(self, ids: Sequence[int], top: int = 0, adapter: str | None = None) -> list[dict[str, Any]]:
        """Return the log probability of each of the token ids after those before it, and of the ``top`` likeliest.

        Entries are those of ``result["logprobs"]``; the first token's is None. Raises as ``logits``.
        """
        check_ids(ids, self.backend.vocabulary)
        if len(ids) > self.backend.context:
            raise self._too_long(len(ids))
        sequence = LogprobSequence(ids, top)
        self._compute(sequence, adapter)
        return [logprob_entry(each, self.tokenizer.piece) for each in sequence.found]

    def _compute(self, sequence: LogitSequence | LogprobSequence, adapter: str | None) -> None:
        """Compute a sequence to its end. Raises what ends it otherwise."""
        sequence.adapter = self._adapter(adapter)
        self.scheduler.add(sequence)
        try:
            while not sequence.ended:
                self.scheduler.advance(sequence)
        finally:
            self.scheduler.cancel(sequence)
        if sequence.error is not None:
            raise sequence.error

    def generate(
        self, prompt: str | Sequence[int], *, system: str | None = None, raw: bool = False, **options: Any
    ) -> Generation:
        """The answer to a prompt, as an iterable of strings; ``options`` are those of ``chat``.

        With a chat template the prompt is a user turn; without one, or with ``raw``, the model continues it
        as it is, as it does token ids. Raises ``ContextTooLong``, ``TemplateError``, ``UsageError``.
        """
        if self.template is None or raw or not isinstance(prompt, str):
            return self.start(self.prompt_ids(prompt), goes_on=True, **options)
        messages = [{"role": "system", "content": system}] if system else []
        return self.chat([*messages, {"role": "user", "content": prompt}], **options)

    def chat(self, messages: Messages | str, **options: Any) -> Generation:
        """The answer to messages ``{"role", "content"}``, as an iterable of strings; a text is one message of a user.

        Options: ``max_tokens temperature top_k top_p min_p typical_p repeat_penalty presence_penalty frequency_penalty
        logit_bias seed logprobs top_logprobs stop``, of which ``rung.engine.sampling.Sampling`` says what they mean;
        those left out or None are the checkpoint's own, else greedy. ``mask`` is called with the tokens of the answer
        so far and returns which may follow: uint64 words, bit t % 64 of word t // 64 for token t; or None for all.
        ``adapter`` is the name of one that ``load_adapter`` has read, or ``__base__`` for none. ``choice`` numbers the
        answers to one prompt with one seed, so that each is drawn anew; answers of an ``owner`` (a text) share what
        they have computed with each other only. ``result`` has the ``seed`` of an answer that was drawn, and
        ``logprobs`` where they were requested. Raises ``UsageError`` for a model without a chat template.
        """
        return self.start(self.chat_ids(_as_messages(messages)), goes_on=False, **options)

    def generate_many(
        self,
        prompts: Iterable[str | Messages],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        progress: bool = True,
    ) -> Iterator[Answer]:
        """Yield the answers to many prompts in their order, each with ``text``, ``tokens`` and ``result``.

        A prompt is a text, as ``generate`` takes it, or messages, as ``chat`` does; ``options`` are their keywords, one
        mapping for each prompt. Answers are computed together, up to ``parallel`` of ``rung.load`` at once. One that
        cannot be computed has an ``error``; the others go on. ``progress`` shows a bar on a terminal. Raises
        ``UsageError`` where there are not as many options as prompts.
        """
        all_prompts = list(prompts)
        keywords = [{}] * len(all_prompts) if options is None else list(options)
        if len(keywords) != len(all_prompts):
            raise UsageError(
                f"There are {count(len(all_prompts), 'prompt')} and options for {len(keywords)}.",
                ways_out=["options=[{}] * len(prompts)   # one for each"],
            )
        return self._in_order(all_prompts, keywords, progress)

    def _in_order(
        self, prompts: Sequence[str | Messages], options: Sequence[Mapping[str, Any]], progress: bool
    ) -> Iterator[Answer]:
        from rich.console import Console
        from rich.progress import Progress

        def start(prompt: str | Messages, keywords: Mapping[str, Any]) -> Generation:
            return (self.generate if isinstance(prompt, str) else self.chat)(prompt, **keywords)  # type: ignore[arg-type]

        jobs = (partial(start, prompt, each) for prompt, each in zip(prompts, options, strict=True))
        done: dict[int, Answer] = {}
        following, console = 0, Console(stderr=True)
        with Progress(console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
            task = bar.add_task("answers", total=len(prompts))
            for number, answer in as_completed(self.scheduler, jobs):
                done[number] = answer
                bar.advance(task)
                while following in done:
                    yield done.pop(following)
                    following += 1

    def embedding_ids(self, texts: Sequence[str | Sequence[int]]) -> list[list[int]]:
        """Return the ids of texts as ``embed`` reads them; ids are checked. Raises ``UsageError``."""
        tokenizer = self.tokenizer
        return ids_of(texts, lambda several: list(map(tokenizer.encode_whole, several)), self.backend.vocabulary)

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        pooling: str | None = None,
        normalize: bool | None = None,
        *,
        truncate: bool = False,
    ) -> Floats:
        """Return the embeddings of texts, or of token ids as they are, f32 [texts, hidden]; no texts give [0, hidden].

        They are hidden states after the final norm. ``pooling`` is last (that of the last token) or mean (of all);
        ``normalize`` makes their length 1. Both are by default what the model's files say (sentence-transformers'
        ``modules.json``, GGUF's ``pooling_type``), else last, and normalized for GGUF files, as llama.cpp does.
        ``truncate`` cuts texts where sentence-transformers does (``max_seq_length``), or at the context. Raises
        ``ContextTooLong`` for a text beyond the context without it, ``UsageError`` for what is no list of texts, for a
        text without a token, and for a network of transformers, which gives no hidden states.
        """
        if not (isinstance(self.backend, Decoder) and isinstance(self.card, ModelCard)):
            raise UsageError(
                f"{self.card.name} is computed by transformers, which gives logits here and no embeddings.",
                (),
                ['rung.load("sentence-transformers/all-MiniLM-L6-v2").embed(texts)'],
                code="architecture-unsupported",
            )
        stored = pooling_of(self.card)
        pooling = check_pooling(pooling or stored.kind or "last", DECODER_POOLINGS)
        ids = self.embedding_ids(texts)
        most = stored.most_tokens if truncate else 0
        ids = within(ids, self.card, self.plan.context, self.tokenizer.around, truncate, most)
        check_empty(self.card.name, ids)
        found = embed(self.scheduler, ids, self.card.decoder.hidden, pooling)
        return normalized(found) if (stored.normalize if normalize is None else normalize) else found

    def fits(self, prompt: str | Messages, answer: int | None = None) -> bool:
        """Return whether a text that is continued, or messages, leave room for an answer of so many tokens, by default
        an eighth of the context."""
        return self.room_after(prompt) >= (max(self.plan.context // 8, 1) if answer is None else answer)

    def room_after(self, prompt: str | Messages) -> int:
        """Return how many tokens of the context a prompt leaves; below zero where it is longer than the context."""
        try:
            ids = self.prompt_ids(prompt) if isinstance(prompt, str) else self.chat_ids(prompt)
        except ContextTooLong:
            return -1
        return self.plan.context - len(ids)

    def prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the ids of a text that is continued; ids are checked. Raises ``ContextTooLong``, ``UsageError``."""
        if isinstance(prompt, str):
            return self._encode(prompt, bos=True)
        check_ids(prompt, self.backend.vocabulary)
        return list(prompt)

    def chat_ids(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        **ending: bool,
    ) -> list[int]:
        """Return the ids of messages by the chat template; ``ending`` as in ``chat_text``. Raises ``ContextTooLong``,
        ``TemplateError``, ``UsageError``."""
        text = self.chat_text(messages, tools, template_kwargs, **ending)
        bos = self.tokenizer.named.get("bos_token", "")
        return self._encode(text, bos=not (bos and text.startswith(bos)))

    @property
    def has_reasoning(self) -> bool:
        """Return whether the model thinks before it answers, by its chat template."""
        return self.template is not None and self.template.has_reasoning

    def chat_text(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        begins_answer: bool = True,
        continues_last: bool = False,
    ) -> str:
        """Return the text of messages by the chat template, with the functions that an answer may call.
        ``template_kwargs`` are further variables of the template, such as ``enable_thinking``; ``date_string`` is
        today, as Llama's has it, unless it is among them. ``begins_answer``: the beginning of an answer follows;
        ``continues_last``: so does the text of the last message, as that of the answer.

        Raises ``TemplateError``, ``UsageError``.
        """
        if self.template is None:
            raise UsageError(
                f"{self.card.name} has no chat template: it continues text and holds no conversation.",
                (),
                ["generate(prompt, raw=True)", f'rung run {quoted(name_of(self.card.path))} --raw "Once upon a time"'],
                code="chat-template-missing",
            )
        variables = {"date_string": date.today().strftime("%d %b %Y"), **(template_kwargs or {})}
        if not continues_last:
            return self.template.render(messages, answer=begins_answer, tools=tools, kwargs=variables)
        if len(messages) < 2 or messages[-1].get("role") != "assistant":
            raise UsageError(
                "Only an assistant's message that follows others can be continued.",
                [f"the last of {count(len(messages), 'message')} is of no assistant, or the only one"],
                ["end the messages with one whose role is assistant", "ask for a new answer"],
            )
        begun = self.template.render(messages[:-1], tools=tools, kwargs=variables)
        return begun + str(messages[-1].get("content") or "")

    def use_template(self, source: str) -> None:
        """Have messages read by another chat template from now on."""
        assert isinstance(self.card, ModelCard), "templates are of models that chat"
        self.card = dataclasses.replace(self.card, chat_template=source)
        self.template = Template(source, self.tokenizer.named)

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
        error = ContextTooLong(
            f"The prompt has {about}{count(tokens, 'token')}, the context holds {self.plan.context:,}.",
            [f"{self.card.name} holds {self.card.context:,} at the most"] if self.card.context else [],
            [*ways, "a shorter prompt"],
        )
        error.tokens, error.context = tokens, self.plan.context
        return error

    def start(self, ids: list[int], *, goes_on: bool, answered: Sequence[int] = (), **options: Any) -> Generation:
        """The answer to token ids; ``options`` are those of ``chat``.

        ``goes_on``: its text continues that of the ids, so a blank at its beginning stays. ``answered`` are tokens of
        the answer that are known, after which it goes on. Raises ``ContextTooLong``, ``UsageError``.
        """
        if len(ids) >= self.plan.context:
            raise self._too_long(len(ids))
        stop = tuple(options.pop("stop", None) or ())
        most, mask = options.pop("max_tokens", None), options.pop("mask", None)
        choice, owner = options.pop("choice", 0), options.pop("owner", "")
        adapter = self._adapter(options.pop("adapter", None))
        sampling = Sampling.of(self.card.defaults, **options)
        sampling.check_tokens(self.tokenizer.size)
        text = TextStream(self.tokenizer, stop, start=not goes_on)
        allowed = None if mask is None else CheckedMask(mask, self.backend.vocabulary)
        sampler = Sampler(sampling, ids, choice, allowed)
        context = self.backend.context
        sequence = TokenSequence(ids, sampler, ends=self._ends, context=context, most=most, owner=owner)
        sequence.adapter = adapter
        sequence.go_on_after(answered)
        return Generation(self.scheduler, sequence, text, partial(self._describe, sampler), self._explain)


def _class_of(error: Exception) -> StepClass:
    if isinstance(error, DeviceLost):
        return StepClass.DEVICE_LOST
    return StepClass.OUT_OF_MEMORY if isinstance(error, OutOfMemory) else StepClass.BROKEN


def _cause(error: Exception) -> str:
    """Return the cause of an error with its first fact."""
    if not isinstance(error, RungError):
        return str(error)
    return " ".join([error.cause, *(f"({fact})" for fact in error.facts[:1])])


def _with_fact(error: Exception, fact: str) -> Exception:
    """Return an error with one more fact."""
    if isinstance(error, RungError):
        error.facts = (*error.facts, fact)
    return error


def _gpu_of(plan: Plan) -> str:
    """Return the device of WebGPU that holds layers of a plan; empty where none does."""
    return next((each.device for each in plan.placements if is_webgpu(each.device)), "")


def _as_messages(prompt: Messages | str) -> Messages:
    """Return messages; a text is one of a user. Raises ``UsageError`` for what is none."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if isinstance(messages, Mapping) or not messages or not all(_is_message(each) for each in messages):
        raise UsageError(
            "Messages are a text, or a list of dictionaries with role and content.",
            (),
            ['model.chat("Hi")', 'model.chat([{"role": "user", "content": "Hi"}])'],
        )
    return messages


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))
