"""Tell whether the server is well, and which models it has."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from rung.server import metrics
from rung.server.engines import Engine
from rung.server.http import json_response
from rung.server.protocol import Counts
from rung.server.service import Call, Endpoint, Service


async def health(call: Call) -> Response:
    """Say 200 when the models of the command line answer, 503 before."""
    waits_for = call.service.pool.waits_for
    if waits_for is None:
        return json_response({"status": "ok"})
    message = "Loading model" if waits_for.failed is None else waits_for.failed.cause
    error = {"message": message, "type": "unavailable_error", "param": None, "code": 503}
    return json_response({"error": error}, 503, {"retry-after": "1"})


async def list_models(call: Call) -> Response:
    """List the models as OpenAI does, with what llama.cpp says of them in ``meta``."""
    data = [_model(call.service, each.name, each.engine) for each in call.service.pool.listed()]
    return json_response({"object": "list", "data": data})


async def show_model(call: Call) -> Response:
    """Show one model as OpenAI does."""
    name, engine = call.service.engine(call.request.path_params["model"])
    return json_response(_model(call.service, name, engine))


def _model(service: Service, name: str, engine: Engine | None) -> dict[str, Any]:
    """Describe a model: its facts once it was loaded, and whether it is loaded now."""
    known, meta, status = None if engine is None else engine.model, None, "unloaded"
    if known is not None:
        meta = {
            "n_vocab": known.vocabulary,
            "n_ctx": known.context,
            "size": known.memory,
            "format": known.format,
            "devices": known.devices,
        }
    if engine is not None and engine.is_loaded:
        status = "loading" if engine.is_starting else "loaded"
    about = {"id": name, "object": "model", "created": service.created, "owned_by": "rung"}
    return {**about, "meta": meta, "status": {"value": status}}


async def show_metrics(call: Call) -> Response:
    """Show what the server has done, for Prometheus."""
    counts = await asyncio.gather(*(engine.counts() for engine in call.service.pool.engines.values()))
    summed = Counts(*(sum(getattr(each, name) for each in counts) for name in Counts.__struct_fields__))
    headers = {"process-start-time-unix": str(call.service.created)}  # llama.cpp's
    return Response(metrics.text(call.service.totals, summed), 200, headers, "text/plain; version=0.0.4")


ENDPOINTS = (
    Endpoint("GET", "/health", health, needs_key=False),
    Endpoint("GET", "/v1/health", health, needs_key=False),
    Endpoint("GET", "/metrics", show_metrics),
    Endpoint("GET", "/v1/models", list_models),
    Endpoint("GET", "/models", list_models),
    Endpoint("GET", "/v1/models/{model:path}", show_model),
)
