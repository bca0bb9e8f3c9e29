"""Reports on an answer beside its text: times, how far its prompt is read, settings, and errors."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from rung.core.errors import BadFile, ContextTooLong, DiskFull, OutOfMemory, RungError, TemplateError, UsageError
from rung.engine.generation import Generation
from rung.engine.sampling import logprob_entry
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.server.child.machines import STAGE_LOST
from rung.server.protocol import Failed, Finished, Generate, PromptRead, Times

#: Bytes that requests take beside the plan of a model: forms of answers, the process that compiles them, and what the
#: threads that prepare requests keep (``benchmarks/server/hostile.py``).
REQUESTS_BYTES = 64 * 2**20


def times_of(generation: Generation) -> Times:
    """Return tokens and seconds of an answer so far."""
    sequence = generation.sequence
    known, seconds = sequence.cached or 0, sequence.seconds
    read = max(min(sequence.computed, sequence.prompt) - known, 0)
    if generation.tokens:  # a cache that has ended holds nothing any more
        read = sequence.prompt - known
    return Times(known, read, seconds["prefill"], len(generation.tokens), seconds["decode"])


def prompt_read(message: Generate, index: int, generation: Generation) -> PromptRead:
    """Return how far the prompt of an answer is read."""
    return PromptRead(id=message.id, index=index, total=generation.sequence.prompt, times=times_of(generation))


def nothing_read(first: PromptRead) -> PromptRead:
    """Return the report before the first one of an answer: only the tokens that were known are there."""
    return PromptRead(
        id=first.id, index=first.index, total=first.total, times=Times(first.times.cached, 0, 0.0, 0, 0.0)
    )


def _served(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report of an answer with the memory that is planned for a process that serves: what is measured is of
    all its requests."""
    predicted = report["predicted"]
    return {
        **report,
        "predicted": {**predicted, "memory_bytes": predicted["memory_bytes"] + REQUESTS_BYTES},
    }


def finished(message: Generate, index: int, slot: int, generation: Generation, tokenizer: Tokenizer) -> Finished:
    """Return the end of an answer, with the details of ``Generate.details``; control tokens of its prompt have their
    names."""
    result, sequence = generation.result, generation.sequence
    return Finished(
        id=message.id,
        index=index,
        slot=slot,
        reason=result["stop_reason"],
        stop_string=generation.stop_string,
        prompt_tokens=result["prompt_tokens"],
        completion_tokens=len(result["tokens"]),
        cached_tokens=result["cached_tokens"],
        prompt_seconds=sequence.seconds["prefill"],
        seconds=sequence.seconds["decode"],
        seed=result.get("seed"),
        report=_served(result["report"]),
        settings=_settings(generation) if message.details else {},
        prompt=tokenizer.decode(sequence.ids[: sequence.prompt], special=True) if message.details else "",
        end_token=_end_token(generation, tokenizer) if message.details else None,
    )


def _end_token(generation: Generation, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the log probabilities of the token that ended an answer and is no part of it."""
    chosen = generation.sequence.logprobs[len(generation.tokens) :]
    if generation.result["stop_reason"] != "end" or not chosen:
        return None
    return logprob_entry(chosen[0], tokenizer.piece)


def _settings(generation: Generation) -> dict[str, Any]:
    sampling = generation.sequence.sampling
    found = {each.name: getattr(sampling, each.name) for each in dataclasses.fields(sampling)}
    return {**found, "logit_bias": list(sampling.logit_bias.items())}


def failure(number: int, error: Exception) -> Failed:
    """Translate an error for the other process. An error other than ``RungError`` is a bug: its words stay in this
    process."""
    if not isinstance(error, RungError):
        print(f"rung itself failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        error = RungError("The engine failed.", code="engine-failed")
    status = 500
    if isinstance(error, (UsageError, TemplateError, BadFile)):
        status = 400
    elif isinstance(error, OutOfMemory | DiskFull) or error.code == STAGE_LOST:
        status = 503
    code, numbers = error.code, dict[str, int]()
    if isinstance(error, ContextTooLong):
        code = "context_length_exceeded"
        if error.tokens:
            numbers = {"n_prompt_tokens": error.tokens, "n_ctx": error.context}
    return Failed(
        id=number,
        status=status,
        code=code,
        cause=error.cause,
        facts=list(error.facts),
        ways_out=list(error.ways_out),
        exit_code=error.exit_code,
        numbers=numbers,
    )
