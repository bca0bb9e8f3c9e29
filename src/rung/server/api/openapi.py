"""The OpenAPI document of the server, made from the rows of endpoints and the structs that bodies are read into."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from rung.core.version import __version__
from rung.server.http import json_response
from rung.server.service import Call, Endpoint

_PLACES = re.compile(r"\{(\w+)(:\w+)?\}")
_ERRORS = {
    "400": "A field is wrong; the message names it.",
    "401": "The key is missing or wrong.",
    "403": "Host or Origin is foreign.",
    "404": "There is no such model, or no such thing.",
    "408": "The body did not come within a minute.",
    "413": "The body is larger than 8 MB.",
    "503": "There is no room, or the model is not loaded yet; Retry-After says when to come again.",
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1) of endpoints."""
    bodies: list[Any] = [each.body for each in endpoints if each.body is not None]
    found, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(bodies, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = _PLACES.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, schemas)
    page = {
        "openapi": "3.1.0",
        "info": {"title": "rung serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    # structs of one name have their module before it: that part of it which is not the same for all
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(page).replace(b"rung.server.api.", b""))
    return shown


def _operation(endpoint: Endpoint, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    refused = {status: {"description": text} for status, text in _ERRORS.items()}
    name = re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_")
    found: dict[str, Any] = {
        "operationId": name,
        "summary": inspect.getdoc(endpoint.handler) or "",
        "responses": {"200": {"description": "The answer."}, **refused},
    }
    if names := _PLACES.findall(endpoint.path):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name, _ in names
        ]
    if endpoint.body is not None:
        content = {"application/json": {"schema": schemas[endpoint.body]}}
        found["requestBody"] = {"required": True, "content": content}
    if endpoint.needs_key:
        found["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
    return found


def endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint that shows the document of endpoints, and of itself."""

    async def show(call: Call) -> Response:
        """Show this document."""
        return json_response(found)

    row = Endpoint("GET", "/openapi.json", show)
    found = document([*endpoints, row])
    return row
