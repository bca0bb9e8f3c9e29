"""llama.cpp's list of adapters, and the strength that each has in answers that name none."""

from __future__ import annotations

from starlette.responses import Response

from rung.server.api.openai_fields import LoraScale, lora_scales
from rung.server.errors import ApiError
from rung.server.http import json_response
from rung.server.service import Call, Endpoint, post


async def show_adapters(call: Call) -> Response:
    """List the adapters of the first model, with their scales in answers that name none."""
    _, engine = call.service.engine(None)
    known = await engine.wait_ready()
    scales = dict(enumerate(scale for _, scale in known.adapters)) if engine.adapters is None else engine.adapters
    listed = [
        {"id": number, "path": path, "scale": scales.get(number, 0.0)}
        for number, (path, _) in enumerate(known.adapters)
    ]
    return json_response(listed)


async def scale_adapters(call: Call, body: list[LoraScale]) -> Response:
    """Set the scales of the adapters of the first model from now on; those that are not named have none."""
    _, engine = call.service.engine(None)
    known = await engine.wait_ready()
    if wrong := [each.id for each in body if each.id >= len(known.adapters)]:
        message = f"There is no adapter {wrong[0]}: there are {len(known.adapters)}."
        raise ApiError(400, message, param="id", code="invalid_value")
    engine.adapters = lora_scales(body)
    return json_response({"success": True})


ENDPOINTS = (
    Endpoint("GET", "/lora-adapters", show_adapters),
    post("/lora-adapters", list[LoraScale], scale_adapters),
)
