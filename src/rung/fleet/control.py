"""Answer other machines on the head over HTTPS: joining with a join token, the rest with Ray's token."""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rung.core.errors import RungError, UsageError
from rung.fleet import node
from rung.fleet.control_client import ENDED, POLL_SECONDS
from rung.fleet.keys import certificates
from rung.fleet.keys import folder as files
from rung.fleet.keys.folder import Folder, JoinTokens
from rung.fleet.messages import BatchAnswer, BatchRequest, FleetStatus, Invitation, JoinRequest, Named, NodeReport, Text
from rung.fleet.work.answering import answer
from rung.server.engines import Engine
from rung.server.errors import ApiError
from rung.server.http import Protocol as HttpProtocol
from rung.server.http import json_response, read_json, unless_gone

#: Connections at most: several batches of 256 requests under way, and the nodes.
_MOST_CALLS = 2048
#: Seconds in which nodes hear that the fleet ends.
_END_SECONDS = 0.3
B = TypeVar("B", bound=msgspec.Struct)


class Fleet(Protocol):
    """The state of a fleet on its head, and its ends."""

    def enter(self, report: NodeReport, *, again: bool = False) -> None:
        """Note a machine that may join, or that comes back. Raises ``UsageError`` where another one of its name is
        there."""

    async def leave(self, name: str) -> None:
        """Return when a node computes nothing any more and gets nothing more. Raises ``UsageError``."""

    def find(self, name: str | None) -> Engine:
        """Return the model of a name. Raises ``ApiError`` (404)."""

    def status(self) -> FleetStatus:
        """Return the state of the fleet."""

    def end(self) -> None:
        """End the fleet."""


class Control:
    """The application. Paths are few, and none is served without a token."""

    def __init__(self, folder: Folder, fleet: Fleet, tokens: JoinTokens, ray: str) -> None:
        self._folder, self._fleet, self._tokens, self._ray = folder, fleet, tokens, ray
        #: Set when the fleet ends because somebody wants it.
        self.ended = asyncio.Event()
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[msgspec.Struct]]] = {
            ("POST", "/join"): self._join,
            ("POST", "/rejoin"): self._rejoin,
            ("GET", "/end"): self._end,
            ("POST", "/leave"): self._leave,
            ("POST", "/answer"): self._answer,
            ("GET", "/status"): self._status,
            ("GET", "/token"): self._token,
            ("GET", "/down"): self._down,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        await (await self._respond(request))(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        route = self._routes.get((request.method, request.url.path))
        try:
            if request.url.path != "/join":
                self._check_token(request)
            if route is None:
                raise ApiError(404, f"There is no {request.url.path}.", code="path_unknown")
            return json_response(await route(request))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except RungError as error:
            return json_response(error.to_json(), 403)
        except ApiError as error:
            code = "fleet-busy" if error.status == 503 else error.code
            return json_response({"error": error.message, "code": code}, error.status, error.headers)

    def _check_token(self, request: Request) -> None:
        """Raise ``UsageError`` for a request without Ray's token."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(token, self._folder.token.encode()):
            raise UsageError("The token of the fleet is missing or wrong.", code="fleet-token")

    async def _join(self, request: Request) -> Invitation:
        body = await read_json(request, JoinRequest)
        if not self._tokens.use(body.token):
            raise UsageError(
                "The join token is wrong, was used, or is too old.",
                ["each lets one machine in, once"],
                ["rung fleet token   # on the head: prints a new one"],
                code="fleet-token",
            )
        node.check_versions(node.versions(), body.versions)
        authority, key = self._folder.read(files.AUTHORITY), self._folder.read(files.AUTHORITY_KEY)
        name, address = node.name_of(body.report.name), body.report.address
        try:
            certificate = certificates.sign(authority, key, body.certificate_request.encode(), name, address)
        except ValueError as error:
            raise UsageError(f"The request to join makes no sense: {error}", code="fleet-token") from error
        self._fleet.enter(body.report)
        return Invitation(authority.decode(), certificate.decode(), self._folder.token, self._ray)

    async def _rejoin(self, request: Request) -> Text:
        report = await read_json(request, NodeReport)
        self._fleet.enter(report, again=True)
        return Text(self._ray)

    async def _end(self, request: Request) -> Text:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self.ended.wait()
        return Text(ENDED if self.ended.is_set() else "")

    async def _leave(self, request: Request) -> Text:
        await self._fleet.leave((await read_json(request, Named)).name)
        return Text("left")

    async def _answer(self, request: Request) -> BatchAnswer:
        return await unless_gone(request, answer(self._fleet, await read_json(request, BatchRequest)))

    async def _status(self, request: Request) -> FleetStatus:
        return self._fleet.status()

    async def _token(self, request: Request) -> Text:
        return Text(self._tokens.new())

    async def _down(self, request: Request) -> Text:
        self._fleet.end()
        return Text("ends")


async def serve(control: Control, folder: Folder, listener: socket.socket) -> None:
    """Serve until canceled."""
    config = uvicorn.Config(
        control,
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CALLS,
        timeout_graceful_shutdown=1,
        ssl_certfile=str(folder.path / files.CERTIFICATE),
        ssl_keyfile=str(folder.path / files.KEY),
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])
    try:
        await server.main_loop()
    finally:
        control.ended.set()
        await asyncio.sleep(_END_SECONDS)
        server.should_exit = server.force_exit = True
        await server.shutdown([listener])
