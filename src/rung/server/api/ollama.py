"""ollama's API: lines of JSON, a stream unless ``stream`` is false."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.core.version import __version__
from rung.engine.chat import has_reasoning
from rung.server.api.chat_parser import FunctionCall, Part, Reasoning, Text, parse, parser_of
from rung.server.api.openai_embeddings import vectors
from rung.server.api.openai_fields import (
    MOST_MESSAGES,
    MOST_TOKENS,
    CallIndex,
    Penalty,
    Repeat,
    Share,
    StopText,
    ends_in_answer,
    schema_grammar,
)
from rung.server.api.tools import Choice, Tool, call_grammar
from rung.server.engines import Engine
from rung.server.errors import ApiError, ollama_error
from rung.server.http import Stream, json_response, to_json, unless_gone
from rung.server.model_pool import parse_keep_alive
from rung.server.protocol import Delta, Finished, Generate, Grammar, ModelInfo, ReasoningOptions
from rung.server.service import Answers, Call, Endpoint, ToGenerate, post, with_body

#: What ollama says of a model that stays: a century.
_FOR_EVER = 100 * 365.25 * 86400
_REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
Name = Annotated[str, Meta(max_length=512)]
_Format = Literal["json", ""] | dict[str, Any] | None
#: Seconds that a model is kept at most; below zero is for ever.
_MOST_WAIT = 10**9
_Wait = Annotated[str, Meta(max_length=64)] | Annotated[float, Meta(ge=-_MOST_WAIT, le=_MOST_WAIT)] | None
_NoImages = Annotated[list[str], Meta(max_length=0)] | None
_Think = bool | Literal["low", "medium", "high"] | None


#: Writes the parts of an answer down.
_Shown = Callable[[Sequence[Part]], dict[str, Any]]


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of an answer. Those of a load (``num_ctx``, ``num_gpu`` ...) are the command line's, and are refused."""

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    num_predict: Annotated[int, Meta(ge=-1, le=MOST_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Repeat | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Annotated[list[StopText], Meta(max_length=64)] | None = None

    def to_options(self) -> dict[str, Any]:
        """Return the options of ``Model.chat``; ``num_predict`` -1 is no limit."""
        options = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        most = options.pop("num_predict", -1)
        return options | ({"max_tokens": most} if most > 0 else {})


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function with its arguments, an object where a model wrote them well."""

    name: str
    arguments: Any = {}
    index: CallIndex | None = None


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in a conversation."""

    function: CalledFunction
    id: str | None = None

    def to_template(self) -> dict[str, Any]:
        """Return it as chat templates read calls."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id or "", "type": "function", "function": function}


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of text; of a tool it has the function's name, and in newer clients the id of the call. Clients that
    send ``images`` always send none where there are none."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: _NoImages = None

    def to_template(self) -> dict[str, Any]:
        """Return it as chat templates read messages."""
        found: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.tool_calls:
            found["tool_calls"] = [each.to_template() for each in self.tool_calls]
        more = {"reasoning_content": self.thinking, "name": self.tool_name, "tool_call_id": self.tool_call_id}
        return found | {name: value for name, value in more.items() if value is not None}


class ChatRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/api/chat``; ``tool_choice`` is OpenAI's. Without ``messages`` the model is loaded, or unloaded where
    ``keep_alive`` is 0."""

    model: Name
    messages: Annotated[list[Message], Meta(max_length=MOST_MESSAGES)] = []
    options: Options | None = None
    format: _Format = None
    stream: bool = True
    keep_alive: _Wait = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Choice | None = None
    think: _Think = None

    def to_generate(self) -> Generate:
        """Return the request to an engine."""
        form, call = _grammar(self.format), call_grammar(self.tools or (), self.tool_choice)
        if form is not None and call is not None:
            raise ApiError(400, "An answer is a call or of a form.", param="tool_choice", code="invalid_value")
        messages = [each.to_template() for each in self.messages]
        return Generate(
            messages=messages,
            continues_last=ends_in_answer(messages),
            options={} if self.options is None else self.options.to_options(),
            grammar=form or call,
            tools=[each.to_template() for each in self.callable_tools],
            reasoning=_reasoning(self.think),
        )

    @property
    def callable_tools(self) -> list[Tool]:
        """Return the tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []


class GenerateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/api/generate``; with ``raw`` the prompt is continued as it is, and nothing is taken for thoughts.
    Without a prompt as ``ChatRequest`` without messages."""

    model: Name
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    images: _NoImages = None
    options: Options | None = None
    format: _Format = None
    stream: bool = True
    keep_alive: _Wait = None
    think: _Think = None

    def to_generate(self, chats: bool) -> Generate:
        """Return the request to an engine, whose model may hold no conversation."""
        options = {} if self.options is None else self.options.to_options()
        if self.raw or not chats:
            return Generate(prompts=[self.prompt], options=options, grammar=_grammar(self.format))
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*before, {"role": "user", "content": self.prompt}]
        form = _grammar(self.format)
        return Generate(messages=messages, options=options, grammar=form, reasoning=_reasoning(self.think))


class EmbedRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/api/embed``. A text that is too long is cut, as ollama has it, unless ``truncate`` is false."""

    model: Name
    input: str | Annotated[list[str], Meta(min_length=1, max_length=2048)]
    truncate: bool | None = None
    keep_alive: _Wait = None


class ShowRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/api/show``."""

    model: Name
    verbose: bool | None = None


def _reasoning(think: _Think) -> ReasoningOptions:
    """Return how the model thinks: as its template says, not at all, or so hard."""
    if isinstance(think, str):
        return ReasoningOptions(enabled=True, effort=think)
    return ReasoningOptions(enabled=think)


def _grammar(form: str | dict[str, Any] | None) -> Grammar | None:
    """Return the form of an answer: any object of JSON, or that of a schema."""
    return schema_grammar({"type": "object"} if form == "json" else form) if form else None  # type: ignore[arg-type]


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def chat(call: Call, body: ChatRequest) -> Response:
    """Answer messages."""

    def shown(parts: Sequence[Part]) -> dict[str, Any]:
        message = {"role": "assistant", **_spoken(parts, "content")}
        calls = [part for part in parts if isinstance(part, FunctionCall)]
        written = [{"id": each.id, "function": {"name": each.name, "arguments": each.decoded()}} for each in calls]
        return {"message": message | ({"tool_calls": written} if calls else {})}

    engine = _engine(call, body.model, body.keep_alive)
    if not body.messages:
        return await _load(call, engine, body.model, shown([]))
    return await _answer(call, body.model, body.to_generate(), body.stream, shown, body.callable_tools)


def _engine(call: Call, model: str, keep_alive: _Wait) -> Engine:
    """Return the model of a name, which is kept as a request says. Raises ``ApiError``."""
    _, engine = call.service.engine(model)
    if keep_alive is not None:
        try:
            seconds = parse_keep_alive(keep_alive)
        except ValueError:
            message = f"keep_alive: {keep_alive!r} is no time: 5m, 300, 0, -1."
            raise ApiError(400, message, param="keep_alive", code="invalid_value") from None
        if seconds > _MOST_WAIT and not str(keep_alive).strip().startswith("-"):
            message = f"keep_alive: {keep_alive!r} is more than {_MOST_WAIT:,} seconds; -1 is for ever."
            raise ApiError(400, message, param="keep_alive", code="invalid_value")
        engine.keep(seconds)
    return engine


async def _load(call: Call, engine: Engine, model: str, shown: dict[str, Any]) -> Response:
    """Load a model, or unload it when it is idle where it shall be kept for no time."""
    if engine.keep_alive:
        await unless_gone(call.request, engine.wait_ready())
    reason = "load" if engine.keep_alive else "unload"
    return json_response({"model": model, "created_at": _now(), **shown, "done": True, "done_reason": reason})


async def generate(call: Call, body: GenerateRequest) -> Response:
    """Answer a prompt."""
    engine = _engine(call, body.model, body.keep_alive)
    if not body.prompt:
        return await _load(call, engine, body.model, {"response": ""})

    def to_generate(known: ModelInfo) -> Generate:
        return body.to_generate(known.chats)

    return await _answer(call, body.model, to_generate, body.stream, lambda parts: _spoken(parts, "response"))


def _spoken(parts: Sequence[Part], name: str) -> dict[str, Any]:
    """Return the text of parts under a name, and what the model thought if it did."""
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    text = "".join(part.text for part in parts if isinstance(part, Text))
    return {name: text} | ({"thinking": thought} if thought else {})


async def _answer(
    call: Call, model: str, request: ToGenerate, streams: bool, shown: _Shown, tools: Sequence[Tool] = ()
) -> Response:
    begun = time.perf_counter()
    answers = await call.begin(model, request, streams=streams)
    if streams:

        def ping(position: int) -> bytes:
            """Write a line of no text, which clients take for a piece of the answer: there are no comments."""
            waiting = {"queue_position": position} if position else {}
            return to_json({"model": model, "created_at": _now(), **shown([]), "done": False, **waiting}) + b"\n"

        lines = _lines(answers, tools, model, shown, begun)
        return Stream(lines, "application/x-ndjson", ping, answers.close)
    (choice,) = await call.collect(answers)
    message = shown(parse(parser_of(answers, tools), choice.text))
    return json_response({"model": model, "created_at": _now(), **message, **_ending(answers, choice.end, begun)})


def _ending(answers: Answers, end: Finished, begun: float) -> dict[str, Any]:
    """Return how an answer ended; times are in nanoseconds."""
    return {
        "done": True,
        "done_reason": _REASONS[end.reason],
        "total_duration": int((time.perf_counter() - begun) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": end.prompt_tokens,
        "prompt_eval_duration": int(end.prompt_seconds * 1e9),
        "eval_count": end.completion_tokens,
        "eval_duration": int(end.seconds * 1e9),
        "rung": answers.rung([end]),
    }


async def _lines(
    answers: Answers, tools: Sequence[Tool], model: str, shown: _Shown, begun: float
) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream; an error ends it."""
    try:
        await answers.begun()
        parser = parser_of(answers, tools)
        async for each in answers:
            head = {"model": model, "created_at": _now()}
            if parts := parser.push(each.text) if isinstance(each, Delta) else parser.finish():
                yield to_json({**head, **shown(parts), "done": False}) + b"\n"
            if isinstance(each, Finished):
                yield to_json({**head, **shown([]), **_ending(answers, each, begun)}) + b"\n"
    except ApiError as error:
        yield to_json(ollama_error(error)) + b"\n"


async def embed(call: Call, body: EmbedRequest) -> Response:
    """Return embeddings of texts."""
    begun = time.perf_counter()
    engine = _engine(call, body.model, body.keep_alive)
    texts = [body.input] if isinstance(body.input, str) else body.input
    found, tokens = await vectors(engine, texts, truncate=body.truncate is not False)
    spent = int((time.perf_counter() - begun) * 1e9)
    more = {"total_duration": spent, "load_duration": 0, "prompt_eval_count": tokens}
    return json_response({"model": body.model, "embeddings": [list(each) for each in found], **more})


def _details(engine: Engine | None, format: str = "") -> dict[str, Any]:
    known = None if engine is None else engine.model
    return {
        "parent_model": "",
        "format": "gguf",
        "family": known.family if known else "",
        "families": [known.family] if known else [],
        "parameter_size": "",
        "quantization_level": known.format if known else format,
    }


def _time(seconds: float) -> str:
    """Return a time since 1970 as ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def tags(call: Call) -> Response:
    """List the models that requests may name."""
    listed = []
    for name, engine, stored in call.service.pool.listed():
        size = engine.model.memory if engine and engine.model else 0
        listed.append(
            {
                "name": name,
                "model": name,
                "modified_at": _time(stored.last_used if stored else call.service.created),
                "size": stored.size if stored else size,
                "digest": stored.blob.removeprefix("sha256-") if stored else "",
                "details": _details(engine, stored.format if stored else ""),
            }
        )
    return json_response({"models": listed})


async def ps(call: Call) -> Response:
    """List the models that are loaded."""
    now = time.time()
    listed = [
        {
            "name": engine.name,
            "model": engine.name,
            "size": engine.model.memory,
            "size_vram": sum(count for device, count in engine.memory.items() if device != "cpu"),
            "digest": "",
            "details": _details(engine),
            "context_length": engine.model.context,
            "expires_at": _time(now + (_FOR_EVER if engine.expires is None else engine.expires)),
        }
        for engine in call.service.pool.loaded
        if engine.is_ready and engine.model
    ]
    return json_response({"models": listed})


async def show(call: Call, body: ShowRequest) -> Response:
    """Show one model."""
    name, engine = call.service.engine(body.model)
    known = await engine.wait_ready()
    family = known.family
    more = {"general.architecture": family, "general.basename": name, f"{family}.context_length": known.context}
    able = ["completion"] if known.writes else ["embedding"]
    able += ["tools"] * known.chats + ["thinking"] * has_reasoning(known.template)
    return json_response(
        {"details": _details(engine), "model_info": more, "capabilities": able, "template": "", "parameters": ""}
    )


async def version(call: Call) -> Response:
    """Say the version."""
    return json_response({"version": __version__})


ENDPOINTS = (
    post("/api/chat", ChatRequest, chat, ollama_error),
    post("/api/generate", GenerateRequest, generate, ollama_error),
    post("/api/embed", EmbedRequest, embed, ollama_error),
    post("/api/show", ShowRequest, show, ollama_error),
    Endpoint("GET", "/api/tags", tags, ollama_error),
    Endpoint("GET", "/api/ps", ps, ollama_error),
    Endpoint("GET", "/api/version", version, ollama_error),
)


class PullRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/api/pull``; ``name`` is the older word for ``model``. Certificates are checked always."""

    model: Name = ""
    name: Name = ""
    insecure: bool = False
    stream: bool | None = None


class DeleteRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/api/delete``."""

    model: Name = ""
    name: Name = ""


def _model(body: PullRequest | DeleteRequest) -> str:
    """Return the name in a body, as the store knows it. Raises ``ApiError``."""
    found = body.model or body.name
    if not found:
        raise ApiError(400, "model is missing.", param="model", code="invalid_value")
    return found.removesuffix(":latest")


async def pull(call: Call, body: PullRequest) -> Response:
    """Pull a model: a starter, or ``ORG/REPO:FORMAT`` of the hub."""
    call.service.store.check()
    model = _model(body)
    if body.insecure:
        raise ApiError(400, "insecure is not supported.", param="insecure", code="unknown_parameter")
    lines = call.service.store.change("pull", model)
    if body.stream is not False:
        return Stream(_pull_lines(lines), "application/x-ndjson", None)
    await unless_gone(call.request, _to_end(lines))
    return json_response({"status": "success"})


async def _to_end(lines: AsyncGenerator[dict[str, Any]]) -> None:
    try:
        async for _ in lines:
            pass
    finally:
        await lines.aclose()


async def _pull_lines(messages: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream; an error ends it."""
    yield to_json({"status": "pulling manifest"}) + b"\n"
    try:
        async for each in messages:
            shown = {"status": f"pulling {each['label']}", "total": each["total"], "completed": each["done"]}
            yield to_json(shown) + b"\n"
        yield to_json({"status": "success"}) + b"\n"
    except ApiError as error:
        yield to_json(ollama_error(error)) + b"\n"
    finally:
        await messages.aclose()


async def delete(call: Call, body: DeleteRequest) -> Response:
    """Delete a pulled model, which is unloaded before when its answers have ended."""
    call.service.store.check()
    name = await call.service.pool.drop(_model(body))
    await _to_end(call.service.store.change("delete", name))
    return Response(status_code=200)


STORE_ENDPOINTS = (
    post("/api/pull", PullRequest, pull, ollama_error),
    Endpoint("DELETE", "/api/delete", with_body(DeleteRequest, delete), ollama_error, body=DeleteRequest),
)
