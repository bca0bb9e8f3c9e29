"""Test connections, whatever is answered: parts of streams, requests in a row, clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import struct
import threading
import time
import urllib.request

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rung.server import http as server_http
from rung.server.api import ENDPOINTS, openai_chat
from rung.server.app import App
from rung.server.gate import Gate
from rung.server.http import Protocol, Stream, unless_gone
from rung.server.model_pool import ModelPool
from rung.server.protocol import Load
from rung.server.serve import http_config
from rung.server.service import Service

#: Parts of the long stream, and their bytes: more than all buffers of a system hold.
PARTS, PART = 3000, b"x" * 2**14
SHORT = [b"data: one\n\n", b"", b"data: two\n\n"]


class Streams:
    """An application of a few paths; ``sent`` counts the parts that were taken of the long stream."""

    def __init__(self) -> None:
        self.sent, self.ended = 0, threading.Event()
        self.writers, self.refused = [], 0

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"]
        if path == "/short":
            await Stream(self._short())(scope, receive, send)
        elif path == "/long":
            await Stream(self._long())(scope, receive, send)
        elif path in ("/later", "/never"):
            await self._later(path, Request(scope, receive, send))
        elif path in ("/drops", "/drops-for-ever"):
            drops = self._drops(2, 0.3) if path == "/drops" else self._drops(1000, 1.0)
            await Stream(drops, ping=None)(scope, receive, send)
        elif path == "/at-once":
            await Stream(self._at_once(), on_begin=self.writers.append)(scope, receive, send)
        else:
            content = PART * PARTS if path == "/whole" else path.encode()
            await Response(content)(scope, receive, send)

    async def _short(self):
        for each in SHORT:
            yield each

    async def _later(self, path, request):
        try:
            await unless_gone(request, asyncio.sleep(0.3 if path == "/later" else 60))
        except ClientDisconnect:
            self.ended.set()
        else:
            await Response(path.encode())(request.scope, request.receive, request._send)

    async def _drops(self, count, seconds):
        """Yield a part now and then."""
        try:
            for each in SHORT[:1] * count:
                await asyncio.sleep(seconds)
                yield each
        finally:
            self.ended.set()

    async def _at_once(self):
        """Every other part is written at once, if the client has read enough for that."""
        self.sent = 0
        for number in range(PARTS):
            self.sent += 1
            part = b"%8d" % number + PART
            if number % 2 == 0 or not self.writers[-1](part):
                self.refused += number % 2
                yield part

    async def _long(self):
        self.sent = 0
        try:
            for _ in range(PARTS):
                self.sent += 1
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
    """Return the bytes that come until the other side closes."""
    return b"".join(iter(lambda: client.recv(2**16), b""))


def wait_still(app: Streams) -> int:
    """The parts that were taken once no more are."""
    before, until = -1, time.monotonic() + 20
    while before != app.sent or not before:
        assert time.monotonic() < until
        before = app.sent
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
        assert streams.sent < PARTS
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


def test_what_is_no_http_behind_a_request_that_was_answered_just_ends_it(streams, logged):
    """An answer may come before the body of its request has."""
    with connected(streams.port, "/a", more="Transfer-Encoding: chunked\r\n", method="POST") as client:
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert b"/a" in answer.read()
        client.sendall(b"zz\r\n")
        assert rest(client) == b""
    assert not [each for each in logged if each.exc_info]


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


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("paths", [["/later"], ["/drops"], ["/later", "/drops", "/a", "/later"]], ids=len)
def test_a_client_that_has_closed_its_side_still_gets_its_answers(streams, paths, version):
    with connected(streams.port, *paths, version=version) as client:
        client.shutdown(socket.SHUT_WR)
        begun = time.monotonic()
        found = rest(client)
    assert time.monotonic() - begun < 5  # it is closed behind the last one
    if version == "1.1":
        assert re.findall(rb"one|/a|/later", found) == [
            each for path in paths for each in ([b"one", b"one"] if path == "/drops" else [path.encode()])
        ]
    elif paths[0] == "/later":
        assert found.startswith(b"HTTP/1.1 200 ")
        assert found.endswith(b"\r\n\r\n/later")
    assert found.count(b"HTTP/1.1 ") == (len(paths) if version == "1.1" else 1)


def test_the_chunks_of_a_stream_stay_whole_when_a_client_has_closed_its_side(streams):
    with connected(streams.port, "/drops") as client:
        time.sleep(0.15)  # the head has come
        client.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.read() == SHORT[0] * 2


@pytest.mark.parametrize("resets", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("path", ["/never", "/drops-for-ever"])
def test_a_client_that_hangs_up_ends_its_answer_at_once(streams, path, resets):
    with connected(streams.port, path) as client:
        time.sleep(0.1)
        streams.ended.clear()
        if path == "/drops-for-ever":
            client.recv(2**16)  # what is not read has the system reset the connection at once
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert streams.ended.wait(0.6)  # a part of the stream comes later


def test_a_client_that_hangs_up_after_it_has_closed_its_side_ends_its_stream(streams):
    with connected(streams.port, "/drops-for-ever") as client:
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.4)
        streams.ended.clear()
    assert streams.ended.wait(5)


def test_a_body_that_its_client_does_not_send_to_the_end_is_not_waited_for(streams):
    with connected(streams.port, "/never", more="Content-Length: 10\r\n", method="POST") as client:
        client.sendall(b"12345")
        time.sleep(0.1)
        streams.ended.clear()
        client.shutdown(socket.SHUT_WR)
        assert rest(client) == b""
    assert streams.ended.wait(5)


@contextlib.asynccontextmanager
async def demo(notes: list[str]):
    """The demo, served by this process's loop; yields a function that posts a body and returns what comes."""
    pool = ModelPool({"demo": Load("demo", {"device": "cpu"})}, on_note=notes.append)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(App(Service(pool), Gate(), ENDPOINTS), 1))
    server.capture_signals = contextlib.nullcontext  # those of the tests stay theirs

    def call(path: str, body: dict) -> bytes:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode()), timeout=60) as answer:
            return answer.read()

    http_task = asyncio.create_task(server.serve([listener]))
    try:
        await pool.start()
        yield lambda path, **body: asyncio.to_thread(call, path, {"max_tokens": 60, "temperature": 0, **body})
    finally:
        server.should_exit = True
        await http_task
        await pool.stop()


def events(data: bytes) -> list[dict]:
    """The choices of a stream's events."""
    lines = [each.removeprefix(b"data: ") for each in data.split(b"\n\n") if each.startswith(b"data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.usefixtures("_cache")
def test_deltas_are_written_at_once_and_are_the_answer_that_is_not_streamed(monkeypatch):
    written, write_now = [], Protocol.write_now

    def counting(self, data):
        found = write_now(self, data)
        written.append(data) if found else None
        return found

    async def both():
        async with demo([]) as call:
            body = {"messages": [{"role": "user", "content": "the model"}]}
            whole = json.loads(await call("/v1/chat/completions", **body))["choices"][0]["message"]["content"]
            assert not written
            return whole, await call("/v1/chat/completions", **body, stream=True)

    monkeypatch.setattr(Protocol, "write_now", counting)
    whole, streamed = asyncio.run(both())
    assert "".join(each["delta"].get("content") or "" for each in events(streamed)) == whole
    assert len(written) > 1
    assert all(each in streamed for each in written)


@pytest.mark.usefixtures("_cache")
def test_an_answer_that_cannot_be_said_ends_its_own_stream_only(monkeypatch):
    def broken(text):
        raise ValueError("no JSON")

    async def all_three():
        async with demo(notes) as call:
            body = {"prompt": "the model", "max_tokens": 200}
            whole = json.loads(await call("/v1/completions", **body))["choices"][0]["text"]
            monkeypatch.setattr(openai_chat, "to_json", broken)
            chat = {"messages": [{"role": "user", "content": "the model"}], "stream": True}
            found = call("/v1/chat/completions", **chat), call("/v1/completions", **body, stream=True)
            return whole, *await asyncio.gather(*found, return_exceptions=True)

    notes: list[str] = []
    whole, failed, streamed = asyncio.run(all_three())
    assert isinstance(failed, http.client.IncompleteRead)
    assert "".join(each["text"] for each in events(streamed)) == whole
    assert not [each for each in notes if "started again" in each]
