"""The page in a browser, beside a server whose answers a test can foresee."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response

from rung.server import page_files
from rung.server.app import App
from rung.server.errors import ApiError
from rung.server.gate import Gate
from rung.server.http import DONE, Stream, event, json_response, read_json
from rung.server.service import Call, Endpoint
from tests.server.page.browser import Browser, Tab, executable

META = {"n_ctx": 512, "format": "q4_0", "devices": ["cpu"], "n_vocab": 1, "size": 1}
RUNG = {
    "devices": ["cpu"],
    "format": "q4_0",
    "steps": [
        {"op": "linear", "rung": "triton.fused", "to": "numba.row", "device": "cuda:0", "reason": "It was lost."}
    ],
    "predicted": {"memory_bytes": 2.0 * 2**30, "decode_tokens_per_second": 20.0},
    "measured": {"memory_bytes": 1.5 * 2**30, "decode_tokens_per_second": 24.25},
}


class FakeServer:
    """The real application and gate around answers that are written here: ``said`` of a message's first word, else
    the message itself with its number of messages."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.models = ["demo"]
        self.said: dict[str, list[str]] = {}
        self.refusals: dict[str, ApiError] = {}
        self.cancelled = 0
        #: Seconds between the parts of an answer; whether an answer waits before its end.
        self.pause, self.is_paused = 0.0, False
        self.ready = True
        rows = (
            Endpoint("GET", "/v1/models", self._models),
            Endpoint("GET", "/health", self._health, needs_key=False),
            Endpoint("POST", "/v1/chat/completions", self._chat),
        )
        self.app = App(None, Gate(), rows + page_files.ENDPOINTS)  # type: ignore[arg-type]
        config = uvicorn.Config(self.app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def need_keys(self, *keys: str) -> None:
        """Ask for one of these keys from now on."""
        self.app._gate = Gate(keys)

    async def _models(self, call: Call) -> Response:
        rows = [{"id": name, "object": "model", "meta": META if self.ready else None} for name in self.models]
        return json_response({"object": "list", "data": rows})

    async def _health(self, call: Call) -> Response:
        if self.ready:
            return json_response({"status": "ok"})
        raise ApiError(503, "Loading model", retry_after=1)

    async def _chat(self, call: Call) -> Response:
        body = await read_json(call.request, dict)
        self.bodies.append(body)
        messages = body["messages"]
        word = messages[-1]["content"].split(" ")[0]
        if word in self.refusals:
            raise self.refusals[word]
        parts = self.said.get(word, [f"{len(messages)} messages, the last one: ", messages[-1]["content"]])
        return Stream(self._parts(parts), on_close=self._closed)

    async def _parts(self, parts: list[str]) -> AsyncGenerator[bytes]:
        self.is_whole = False
        for text in parts:
            if text.startswith((": ping", ": queue")):
                yield text.encode() + b"\n\n"
            elif text == "BREAK":
                raise RuntimeError("this answer breaks off")
            elif text == "FAIL":
                yield event({"error": {"message": "The engine failed.", "code": "engine-failed"}})
            else:
                yield event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
            await asyncio.sleep(self.pause)
        while self.is_paused:
            await asyncio.sleep(0.02)
        yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 9, "completion_tokens": 58, "prompt_tokens_details": {"cached_tokens": 4}}
        yield event({"choices": [], "usage": usage, "rung": RUNG})
        self.is_whole = True
        yield DONE

    async def _closed(self) -> None:
        self.cancelled += not self.is_whole

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/"

    def stop(self) -> None:
        self.is_paused, self._server.should_exit = False, True
        self._thread.join(10)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A server of answers that are foreseen."""
    server = FakeServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, where it is installed: Debian's package is ``chromium``."""
    if executable() is None:
        pytest.skip("the page is not tried in a browser: apt-get install chromium")
    found = Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture
def tab(browser: Browser, fake: FakeServer) -> Iterator[Tab]:
    """The page of the fake server. At the end of a test its console has no error, and nothing came from elsewhere."""
    with browser.tab(fake.url) as found:
        found.wait("document.querySelector('.model').innerText === 'demo'")
        yield found
        assert found.expects_problems or found.problems == []
        assert [url for url in found.requests if not url.startswith((fake.url, "blob:" + fake.url))] == []
