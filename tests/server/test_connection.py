"""What a connection does, whatever is answered: parts of streams, requests in a row, clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import threading
import time

import pytest
import uvicorn
from starlette.responses import Response

from rung.server import http as server_http
from rung.server.http import Stream
from rung.server.serve import http_config

#: Parts of the long stream, and their bytes: more than all buffers of a system hold.
PARTS, PART = 3000, b"x" * 2**14
SHORT = [b"data: one\n\n", b"", b"data: two\n\n"]


class Streams:
    """An application of a few paths; ``given`` counts the parts that were taken of the long stream."""

    def __init__(self) -> None:
        self.given, self.ended = 0, threading.Event()
        self.writers, self.refused = [], 0

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"]
        if path == "/short":
            await Stream(self._short())(scope, receive, send)
        elif path == "/long":
            await Stream(self._long())(scope, receive, send)
        elif path == "/at-once":
            await Stream(self._at_once(), on_begin=self.writers.append)(scope, receive, send)
        else:
            content = PART * PARTS if path == "/whole" else path.encode()
            await Response(content)(scope, receive, send)

    async def _short(self):
        for each in SHORT:
            yield each

    async def _at_once(self):
        """Every other part is written at once, if the client has read enough for that."""
        self.given = 0
        for number in range(PARTS):
            self.given += 1
            part = b"%8d" % number + PART
            if number % 2 == 0 or not self.writers[-1](part):
                self.refused += number % 2
                yield part

    async def _long(self):
        self.given = 0
        try:
            for _ in range(PARTS):
                self.given += 1
                yield PART
        finally:
            self.ended.set()


@pytest.fixture(scope="module")
def streams():
    """The application, with its port, in a thread."""
    app, listener = Streams(), socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(app, 1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    app.port, app.connections = listener.getsockname()[1], server.server_state.connections
    yield app
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def connected(port: int, *paths: str, version: str = "1.1", more: str = "", method: str = "GET"):
    """A connection with a small buffer over which requests are sent in a row."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", port))
        requests = [f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{more}\r\n" for path in paths]
        client.sendall("".join(requests).encode())
        yield client


def rest(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    return b"".join(iter(lambda: client.recv(2**16), b""))


def wait_still(app: Streams) -> int:
    """The parts that were taken once no more are."""
    before, until = -1, time.monotonic() + 20
    while before != app.given or not before:
        assert time.monotonic() < until
        before = app.given
        time.sleep(0.3)
    return before


def test_a_client_that_does_not_read_holds_its_stream_up_and_loses_nothing(streams):
    with connected(streams.port, "/long", more="Connection: close\r\n") as client:
        assert wait_still(streams) < PARTS // 2
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.read() == PART * PARTS


def test_parts_that_are_written_at_once_come_in_their_order_and_wait_for_a_slow_client(streams):
    with connected(streams.port, "/at-once", more="Connection: close\r\n") as client:
        assert wait_still(streams) < PARTS // 2
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.read() == b"".join(b"%8d" % number + PART for number in range(PARTS))
    assert 0 < streams.refused < PARTS // 2


def test_a_client_that_never_reads_is_hung_up_on(streams, monkeypatch):
    monkeypatch.setattr(server_http, "READ_SECONDS", 0.2)
    streams.ended.clear()
    with connected(streams.port, "/long") as client:
        assert streams.ended.wait(20)
        assert streams.given < PARTS
        with contextlib.suppress(ConnectionError):
            assert len(rest(client)) < len(PART) * PARTS


@pytest.mark.parametrize("more", ["Connection: close\r\n", ""])
def test_a_client_that_never_reads_a_whole_answer_is_hung_up_on(streams, monkeypatch, more):
    monkeypatch.setattr(server_http, "READ_SECONDS", 0.2)
    with connected(streams.port, "/whole", more=more) as client:
        until = time.monotonic() + 20
        while not streams.connections:
            assert time.monotonic() < until
        while streams.connections:
            assert time.monotonic() < until
            time.sleep(0.01)
        with contextlib.suppress(ConnectionError):
            assert len(rest(client)) < len(PART) * PARTS


def test_what_is_no_http_behind_a_request_that_was_answered_just_ends_it(streams, caplog):
    """An answer may come before the body of its request has."""
    with connected(streams.port, "/a", more="Transfer-Encoding: chunked\r\n", method="POST") as client:
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert b"/a" in answer.read()
        client.sendall(b"zz\r\n")
        assert rest(client) == b""
    assert not [each for each in caplog.records if each.exc_info]


def test_requests_in_a_row_have_their_answers_in_order(streams):
    with connected(streams.port, "/short", "/a", "/short") as client:
        client.sendall(b"GET /b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = rest(client)
    assert found.count(b"HTTP/1.1 200 ") == 4
    assert re.findall(rb"one|two|/a|/b", found) == [b"one", b"two", b"/a", b"one", b"two", b"/b"]


@pytest.mark.parametrize("version", ["0.9", "1.0", "1.1"])
def test_a_stream_is_in_chunks_from_http_1_1_on(streams, version):
    with connected(streams.port, "/short", version=version, more="Connection: close\r\n") as client:
        head, _, body = rest(client).partition(b"\r\n\r\n")
    if version == "1.1":
        assert b"transfer-encoding: chunked" in head.lower()
        assert body == b"b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n"
    else:
        assert b"transfer-encoding" not in head.lower()
        assert body == b"".join(SHORT)


def test_connection_close_ends_it_after_a_stream(streams):
    with connected(streams.port, "/short", more="Connection: close\r\n") as client:
        found = rest(client)
    assert b"connection: close" in found.lower()
    assert found.endswith(b"0\r\n\r\n")


def test_the_head_of_a_stream_has_no_body(streams):
    with connected(streams.port, "/short", more="Connection: close\r\n", method="HEAD") as client:
        assert rest(client).partition(b"\r\n\r\n")[2] == b""
