"""Promises of each path that answers: it says on which rung it ran, and its streams give signs of life at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import threading
import time

import anthropic
import ollama
import openai
import pytest
from benchmarks.server.parts import parse, request

from tests.server.conftest import serving

HELLO = [{"role": "user", "content": "hello"}]
#: Bodies of short answers, without the model.
BODIES = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 6},
    "/v1/completions": {"prompt": "the model", "max_tokens": 6},
    "/v1/responses": {"input": "hello", "max_output_tokens": 6},
    "/v1/messages": {"messages": HELLO, "max_tokens": 6},
    "/api/chat": {"messages": HELLO, "options": {"num_predict": 6}},
    "/api/generate": {"prompt": "hello", "options": {"num_predict": 6}},
    "/completion": {"prompt": "the model", "n_predict": 6},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 6},
}
#: Signs of life of a path, where that is no comment.
SIGNS = {
    "/v1/messages": rb'event: ping\ndata: \{"type":"ping"\}\n\n',
    "/api/chat": rb'\{[^\n]*"message":\{"role":"assistant","content":""\},"done":false[^\n]*\}\n',
    "/api/generate": rb'\{[^\n]*"response":"","done":false[^\n]*\}\n',
}
#: Seconds of silence that a busy machine may make of the one that there are between two signs.
MOST_SILENCE = 2.0


@pytest.fixture(scope="module")
def filler(coder, tmp_path_factory):
    """A server of a model that fills holes, too, with the room of one answer."""
    with serving(tmp_path_factory.mktemp("filler"), str(coder), "--alias", "coder", "--parallel", "1") as server:
        yield server


def body_of(path: str, *, streams: bool) -> dict:
    usage = {"stream_options": {"include_usage": True}} if streams and "completions" in path else {}
    return {"model": "coder", **BODIES[path], "stream": streams, **usage}


def documents(content: str) -> list[dict]:
    """The documents of a stream of events, or of lines."""
    lines = [line.removeprefix("data: ") for line in content.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def ran_of(document: dict) -> dict | None:
    """The ``rung`` of a document, if it has one; that of an event of OpenAI's responses is in the response."""
    response = document.get("response")
    return document.get("rung") or (response.get("rung") if isinstance(response, dict) else None)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_an_answer_says_what_ran(filler, path, streams):
    status, found, _ = filler.call(path, body_of(path, streams=streams))
    assert status == 200, found
    said = [ran for each in (documents(found) if streams else [found]) if (ran := ran_of(each))]
    assert len(said) == 1
    assert said[0]["devices"] == ["cpu"]
    assert said[0]["format"]
    assert said[0]["steps"] == []
    for name in ("predicted", "measured"):
        assert said[0][name]["memory_bytes"] > 0


class Listener(threading.Thread):
    """A client that sends a request and reads to its end; ``parts`` are bytes with the seconds until they came."""

    def __init__(self, port: int, data: bytes, *, half_closed: bool = False) -> None:
        super().__init__(daemon=True)
        self._port, self._data, self._half_closed = port, data, half_closed
        self.parts: list[tuple[float, bytes]] = []
        self.begun = time.monotonic()
        self.start()

    def run(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as client:
            client.sendall(self._data)
            if self._half_closed:
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(2**16):
                self.parts.append((time.monotonic() - self.begun, part))

    def read(self) -> bytes:
        """All that has come so far."""
        return b"".join(part for _, part in list(self.parts))

    def finish(self) -> tuple[int, str]:
        """Status and content, when all has come."""
        self.join(60)
        assert not self.is_alive()
        reply = parse(self.read())
        return reply.status, reply.content.decode()

    def longest_silence(self, until: float) -> float:
        """Seconds between two parts at most, from the request to ``until``."""
        times = [0.0, *(seconds for seconds, _ in list(self.parts) if seconds < until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_has_closed_its_side_gets_its_answer(filler, path, streams):
    """As ``nc -N`` does, when all is sent."""
    data = request(path, body_of(path, streams=streams))
    found = [Listener(filler.port, data, half_closed=each).finish() for each in (False, True)]
    assert [status for status, _ in found] == [200, 200]
    texts = [text_of(path, content) if streams else json.loads(content) for _, content in found]
    if not streams:
        texts = [re.findall(r'"(?:content|text|response)": ?"[^"]*"', json.dumps(each)) for each in texts]
    assert texts[0] == texts[1]
    assert texts[0]


@contextlib.contextmanager
def halted(process: int):
    """A process that stands still until the block ends."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def wait_until(holds) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def text_of(path: str, content: str) -> str:
    """The text of an answer that was streamed."""
    found = documents(content)
    if path.startswith("/api"):
        return "".join(each["message"]["content"] if "message" in each else each["response"] for each in found)
    if path == "/v1/messages":
        return "".join(each["delta"].get("text", "") for each in found if each["type"] == "content_block_delta")
    if path == "/v1/responses":
        return "".join(each["delta"] for each in found if each["type"] == "response.output_text.delta")
    if path in ("/completion", "/infill"):
        return "".join(each["content"] for each in found)
    choices = [choice for each in found for choice in each["choices"]]
    return "".join(each["delta"].get("content") or "" if "delta" in each else each["text"] for each in choices)


@contextlib.contextmanager
def unloaded(server):
    """In the block the model is loaded by the first request."""
    server.call("/api/generate", {"model": "coder", "keep_alive": 0})
    wait_until(lambda: not server.engines())
    yield
    server.call("/api/generate", {"model": "coder", "keep_alive": -1})


def test_a_stream_gives_signs_of_life_while_its_model_is_loaded(filler):
    whole = {path: text_of(path, filler.call(path, body_of(path, streams=True))[1]) for path in BODIES}
    with unloaded(filler):
        clients = {path: Listener(filler.port, request(path, body_of(path, streams=True))) for path in BODIES}
        wait_until(filler.engines)
        with halted(filler.engine()):
            time.sleep(3.2)
            for path, client in clients.items():
                found = client.read()
                assert found.startswith(b"HTTP/1.1 200 "), path
                assert len(re.findall(SIGNS.get(path, rb": ping\n\n"), found)) >= 2, (path, found)
                assert client.longest_silence(3.0) < MOST_SILENCE, path
        for path, client in clients.items():
            status, content = client.finish()
            assert (status, text_of(path, content)) == (200, whole[path]), path


def chat_with_openai(url: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model="coder", **BODIES["/v1/chat/completions"], stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def chat_with_anthropic(url: str) -> str:
    with (
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="coder", **BODIES["/v1/messages"]) as stream,
    ):
        text = "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == 6
        return text


def chat_with_ollama(url: str) -> str:
    parts = list(ollama.Client(host=url).chat(model="coder", **BODIES["/api/chat"], stream=True))
    assert [part.done for part in parts].index(True) == len(parts) - 1
    assert [part.message.content for part in parts[:2]] == ["", ""]
    return "".join(part.message.content for part in parts)


def test_official_clients_take_the_signs_of_life(filler):
    found: dict[str, str] = {}

    def chat(client) -> None:
        found[client.__name__] = client(filler.url)

    clients = [chat_with_openai, chat_with_anthropic, chat_with_ollama]
    body = body_of("/v1/chat/completions", streams=False)
    text = filler.call("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    with unloaded(filler):
        threads = [threading.Thread(target=chat, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        wait_until(filler.engines)
        with halted(filler.engine()):
            time.sleep(3.0)
        for thread in threads:
            thread.join()
    assert found == {client.__name__: text for client in clients}


#: A place in the queue: a line of ollama's, a comment for clients of server-sent events.
POSITION = re.compile(rb'"queue_position":\d+\}\n|: queue position \d+\n\n')


def test_a_stream_in_the_queue_says_its_place_each_second(filler, endless):
    blocker = {"model": "coder", "prompt": "the", "max_tokens": 500, "n": 8, "logit_bias": endless, "stream": True}
    first = Listener(filler.port, request("/v1/completions", blocker))
    wait_until(lambda: filler.metric("rung_requests_processing"))
    clients = {path: Listener(filler.port, request(path, body_of(path, streams=True))) for path in BODIES}
    wait_until(lambda: all(POSITION.search(client.read()) for client in clients.values()))
    with halted(filler.engine()):
        time.sleep(3.2)
        for path, client in clients.items():
            assert len(POSITION.findall(client.read())) >= 3, (path, client.read())
            assert client.longest_silence(3.0) < MOST_SILENCE, path
    for path, client in clients.items():
        status, content = client.finish()
        assert (status, "rung" in content) == (200, True), path
    first.finish()


#: How a stream that has begun says that it failed.
ERRORS = {
    "/v1/messages": r'event: error\ndata: \{"type":"error","error":\{"type":"overloaded_error","message":"[^"]',
    "/v1/responses": r'event: error\ndata: \{"type":"error",[^\n]*"message":"[^\n]*\n\nevent: response.failed\n',
    "/api/chat": r'\n\{"error":"[^"]+"\}\n$',
    "/api/generate": r'\n\{"error":"[^"]+"\}\n$',
}


def test_a_stream_whose_model_cannot_be_loaded_ends_with_an_error(coder, tmp_path):
    file = tmp_path / "coder.gguf"
    shutil.copy(coder, file)
    with serving(tmp_path, str(file), "--alias", "coder") as server, unloaded(server):
        file.unlink()
        file.write_bytes(b"GGUF" + b"\xff" * 100)
        clients = {path: Listener(server.port, request(path, body_of(path, streams=True))) for path in BODIES}
        wait_until(server.engines)
        with halted(server.engine()):
            time.sleep(1.0)
        for path, client in clients.items():
            status, content = client.finish()
            assert status == 200, path
            assert re.search(ERRORS.get(path, r'data: \{"error":\{"message":"[^"]'), content), (path, content)
        file.unlink()
        shutil.copy(coder, file)
        assert server.call("/v1/completions", body_of("/v1/completions", streams=False))[0] == 200


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_is_refused_at_once_has_a_status(filler, path):
    long = "long " * 2000
    fields = {"prompt": long, "input": long, "input_prefix": long, "messages": [{"role": "user", "content": long}]}
    body = body_of(path, streams=True)
    status, found, _ = filler.call(path, body | {name: fields[name] for name in body if name in fields})
    assert status == 400
    assert "context" in str(found)
