"""The ASGI application: match an endpoint, ask the gate, call the handler, write errors down."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterable, Sized

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from rung.server.errors import ApiError, number_too_large, openai_error, stopping
from rung.server.gate import Gate
from rung.server.http import json_response
from rung.server.protocol import NumberTooLarge
from rung.server.service import Call, Endpoint, Service

#: Connections at once.
MOST_CONNECTIONS = 1024
#: Headers of every response: a browser takes none of them for anything but what it says it is.
_HEADERS = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}


class App:
    """Serve endpoints. Paths are matched as they came, never rebuilt from headers. ``connections`` are those that the
    server has; a request above ``MOST_CONNECTIONS`` is refused."""

    def __init__(self, service: Service, gate: Gate, endpoints: Iterable[Endpoint]) -> None:
        self._service, self._gate = service, gate
        self.connections: Sized = ()
        self._routes = [(compile_path(each.path)[0], each) for each in endpoints]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        request = Request(scope, receive, send)
        endpoint, refusal = self._match(scope)
        try:
            self._check_connections()
            response = await self._respond(request, endpoint, refusal)
        except ClientDisconnect:
            return
        except (ApiError, asyncio.CancelledError) as error:
            refused = error if isinstance(error, ApiError) else stopping()  # only a server that stops cancels this
            style = openai_error if endpoint is None else endpoint.style
            response = json_response(style(refused), refused.status, refused.headers)
        for name, value in {**_HEADERS, **self._gate.cors(request.headers)}.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    def _check_connections(self) -> None:
        """Raise ``ApiError`` (503) where there are too many connections; this one then ends."""
        if (count := len(self.connections)) > MOST_CONNECTIONS:
            message = f"{count:,} connections are open, and there is room for {MOST_CONNECTIONS:,}."
            raise ApiError(503, message, code="too_many_connections", retry_after=1, closes=True)

    def _match(self, scope: Scope) -> tuple[Endpoint | None, ApiError]:
        """Return the endpoint of a request, or None and why there is none."""
        methods = []
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # whose body the connection leaves out
        for pattern, endpoint in self._routes:
            if found := pattern.match(scope["path"]):
                methods.append(endpoint.method)
                if method == endpoint.method:
                    scope["path_params"] = found.groupdict()
                    return endpoint, ApiError(404, "")
        if methods:
            return None, ApiError(405, f"{scope['method']} is not for {scope['path']}: {', '.join(methods)} is.")
        return None, ApiError(404, f"There is no {scope['path']}.", code="path_unknown")

    async def _respond(self, request: Request, endpoint: Endpoint | None, refusal: ApiError) -> Response:
        """Return the response of an endpoint, once the gate has let the request through. Raises ``ApiError``."""
        if request.method == "OPTIONS":
            self._gate.check_source(request.headers)
            return Response()
        owner = self._gate.check(request.headers, needs_key=endpoint is None or endpoint.needs_key)
        if endpoint is None:
            raise refusal
        try:
            return await endpoint.handler(Call(request, self._service, owner))
        except (ApiError, ClientDisconnect):
            raise
        except NumberTooLarge as error:
            raise number_too_large(error) from error
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            raise ApiError(500, "The server failed; its log says why.", code="server_failed") from error
