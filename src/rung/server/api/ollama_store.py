"""ollama's endpoints that change the store: models are pulled and deleted, where ``--allow-pull`` says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response

from rung.server.api.ollama import Name
from rung.server.errors import ApiError, ollama_error
from rung.server.http import Stream, json_response, to_json, unless_gone
from rung.server.service import Call, Endpoint, post, with_body


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
        return Stream(_lines(lines), "application/x-ndjson", b"")
    await unless_gone(call.request, _to_end(lines))
    return json_response({"status": "success"})


async def _to_end(lines: AsyncGenerator[dict[str, Any]]) -> None:
    try:
        async for _ in lines:
            pass
    finally:
        await lines.aclose()


async def _lines(messages: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
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


ENDPOINTS = (
    post("/api/pull", PullRequest, pull, ollama_error),
    Endpoint("DELETE", "/api/delete", with_body(DeleteRequest, delete), ollama_error, body=DeleteRequest),
)
