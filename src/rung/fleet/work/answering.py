"""Answer the requests of a batch on the head: through the router, as clients' requests are."""

from __future__ import annotations

from typing import Any, Protocol

from rung.core.errors import UsageError
from rung.fleet.messages import BatchAnswer, BatchRequest
from rung.server.engines import Engine
from rung.server.errors import ApiError
from rung.server.protocol import Delta, Embed, Finished, Generate, Started

#: The owner of all requests of batches: clients take turns with it.
_OWNER = "batch"
#: Statuses of requests that no node can answer, and the code of one on which each node was lost.
_REFUSED, _LOST = (400, 404, 413), "engine_ended"


class Models(Protocol):
    """The models of a fleet."""

    def find(self, name: str | None) -> Engine:
        """Return the model of a name. Raises ``ApiError`` (404)."""


async def answer(models: Models, message: BatchRequest) -> BatchAnswer:
    """Return the answer to a request, also where it has none because of what it wants. Raises ``ApiError`` where the
    fleet cannot say now."""
    engine = models.find(message.model)
    try:
        if message.texts:
            found = await engine.ask(Embed(texts=list(message.texts)))
            return BatchAnswer(vectors=found["vectors"], prompt_tokens=found["tokens"])
        return await _generated(engine, await _request(engine, message))
    except ApiError as error:
        if error.status not in _REFUSED and error.code != _LOST:
            raise
        return BatchAnswer(error=error.message)


async def _request(engine: Engine, message: BatchRequest) -> Generate:
    """Return the message to the engine: as ``Model.generate`` and ``Model.chat`` take a prompt and messages."""
    messages: list[dict[str, Any]] = list(message.messages)
    if message.prompt is not None:
        chats = (await engine.wait_ready()).chats
        if message.raw or not chats:
            return Generate(prompts=[message.prompt], options=message.options, owner=_OWNER)
        messages = [{"role": "system", "content": message.system}] if message.system else []
        messages.append({"role": "user", "content": message.prompt})
    return Generate(messages=messages, options=message.options, owner=_OWNER)


async def _generated(engine: Engine, request: Generate) -> BatchAnswer:
    """Return the whole answer to a request. Raises ``ApiError``."""
    pieces, tokens, entries, end = list[str](), list[int](), list[dict[str, Any]](), None
    prompt = 0
    async for event in engine.generate(request):
        if isinstance(event, Started):
            prompt = event.prompt_tokens
        elif isinstance(event, Delta):
            pieces.append(event.text)
            tokens += event.tokens
            entries += event.logprobs or ()
        elif isinstance(event, Finished):
            end = event
    if end is None:
        raise ApiError(503, "The answer has no end.", code=_LOST, retry_after=1)
    return BatchAnswer(
        node=end.report.get("node", ""),
        text="".join(pieces),
        tokens=tokens,
        reason=end.reason,
        prompt_tokens=end.prompt_tokens or prompt,
        cached_tokens=end.cached_tokens,
        logprobs=entries if request.options.get("logprobs") else None,
    )


def served(models: dict[str, dict[str, str]], name: str | None) -> str:
    """Return the model of a fleet that a batch is for: that of a name, else the only one. Raises ``UsageError``."""
    if name in models:
        return name
    if name is None and len(models) == 1:
        return next(iter(models))
    problem = "The batch names no model" if name is None else f"The fleet has no model {name}"
    raise UsageError(f"{problem}.", [f"it has {', '.join(models)}"], [f"--model {each}" for each in models])
