"""Tell whether the server is well, and which models it has."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from rung.server import metrics
from rung.server.engine_client import EngineClient
from rung.server.http import json_response
from rung.server.protocol import Counts, Stats
from rung.server.service import Call, Endpoint, Service


async def health(call: Call) -> Response:
    """Say 200 when all models answer, 503 before."""
    engines = call.service.engines.values()
    if all(engine.is_ready for engine in engines):
        return json_response({"status": "ok"})
    failed = next((engine.failed.cause for engine in engines if engine.failed is not None), None)
    message = failed or "Loading model"
    error = {"message": message, "type": "unavailable_error", "param": None, "code": 503}
    return json_response({"error": error}, 503, {"retry-after": "1"})


async def list_models(call: Call) -> Response:
    """List the models as OpenAI does, with what llama.cpp says of them in ``meta``."""
    service = call.service
    data = [_model(service, name, engine) for name, engine in service.engines.items()]
    return json_response({"object": "list", "data": data})


async def show_model(call: Call) -> Response:
    """Show one model as OpenAI does."""
    name, engine = call.service.engine(call.request.path_params["model"])
    return json_response(_model(call.service, name, engine))


def _model(service: Service, name: str, engine: EngineClient) -> dict[str, Any]:
    known, meta = engine.model, None
    if known is not None:
        meta = {
            "n_vocab": known.vocabulary,
            "n_ctx": known.context,
            "size": known.memory,
            "format": known.format,
            "devices": known.devices,
        }
    return {"id": name, "object": "model", "created": service.created, "owned_by": "rung", "meta": meta}


async def show_metrics(call: Call) -> Response:
    """Show what the server has done, for Prometheus."""
    found = [await engine.ask(Stats()) for engine in call.service.engines.values()]
    counts = [msgspec.convert(each, Counts) for each in found]
    summed = Counts(*(sum(getattr(each, name) for each in counts) for name in Counts.__struct_fields__))
    return Response(metrics.text(call.service.totals, summed), media_type="text/plain; version=0.0.4")


ENDPOINTS = (
    Endpoint("GET", "/health", health, needs_key=False),
    Endpoint("GET", "/metrics", show_metrics),
    Endpoint("GET", "/v1/models", list_models),
    Endpoint("GET", "/models", list_models),
    Endpoint("GET", "/v1/models/{model:path}", show_model),
)
