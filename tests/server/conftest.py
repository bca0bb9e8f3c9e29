"""A server of the demo, as a person starts it, and clients that people have."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.engine.load import load
from tests.cli.conftest import rung  # noqa: F401 - a fixture

#: Seconds until a server must answer: the first one of a version compiles and proves kernels.
START_SECONDS = 240.0


#: What differs between two answers to one request, beside random ids.
VOLATILE = ("created", "created_at", "completed_at", "timings", "rung")

#: Where the shared server computes: RUNG_SERVED_ON=webgpu:0 has the tests of clients ask a software adapter of Vulkan.
DEVICE = os.environ.get("RUNG_SERVED_ON", "cpu")
PLANTED = str(Path(__file__).parent / "planted")


@pytest.fixture
def fault(_cache, monkeypatch) -> Iterator[Path]:
    """The file that has the next step of a model fail: where the process of a model may read and write."""
    file = Path(os.environ["RUNG_CACHE"]) / "tmp" / f"fault-{os.getpid()}"
    file.parent.mkdir(exist_ok=True)
    monkeypatch.setenv("PLANTED", str(file))
    yield file
    file.unlink(missing_ok=True)


def stable(document: Any) -> Any:
    """A document without what differs between two answers to one request."""
    if isinstance(document, list):
        return [stable(each) for each in document]
    if not isinstance(document, dict):
        return document
    kept = {name: value for name, value in document.items() if name not in VOLATILE}
    return {name: stable(value) for name, value in kept.items() if name != "id" or value == "demo"}


class Server:
    """A running ``rung serve``. ``said`` is the file of what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], said: str, url: str = "") -> None:
        self.process, self._said = process, said
        self.url = url or self._find(r"https?://\S+")

    def _find(self, pattern: str) -> str:
        """The first match in what it prints."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if found := re.search(pattern, self.said()):
                return found[0]
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)
        raise AssertionError(self.said())

    def said(self) -> str:
        with open(self._said, encoding="utf-8") as file:
            return file.read()

    def wait_for(self, pattern: str) -> None:
        """Wait until it has printed something."""
        self._find(pattern)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def call(self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None):
        """Status, document (or text) and headers of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
                status, content, found = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                status, content, found = error.code, error.read(), error.headers
        is_json = found.get_content_type() == "application/json"
        return status, json.loads(content) if is_json else content.decode(), found

    def metric(self, name: str) -> float:
        """A value of ``/metrics``."""
        text = self.call("/metrics")[1]
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])

    def wait_idle(self, seconds: float = 10.0) -> float:
        """Wait until nothing is computed, as the engine says; return after how many seconds that was."""
        begun = time.monotonic()
        while any(each["is_processing"] for each in self.call("/slots")[1]) or self.metric("rung_requests_deferred"):
            assert time.monotonic() < begun + seconds, "answers go on without a client"
            time.sleep(0.01)
        return time.monotonic() - begun

    def engine(self) -> int:
        """The process id of the engine."""
        (found,) = self.engines()
        return found

    def engines(self) -> list[int]:
        """The process ids of all engines."""
        command = ["pgrep", "-P", str(self.process.pid)]
        return list(map(int, subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()))

    def wait_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if self.call("/health")[0] == 200:
                    return
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)
        raise AssertionError(self.said())


@contextlib.contextmanager
def serving(folder, *arguments: str, ready: bool = True, first: str = "", port: int = 0) -> Iterator[Server]:
    """Run ``rung serve`` with arguments; modules of the folder ``first`` stand for others of the same name. With a
    ``port`` nobody waits until it prints where it listens."""
    said = str(folder / "said")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [first, *sys.path]))}
    command = [sys.executable, "-P", "-m", "rung", "serve", *arguments, "--port", str(port)]
    with open(said, "wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
        try:
            server = Server(process, said, f"http://127.0.0.1:{port}" if port else "")
            if ready:
                server.wait_ready()
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="session")
def server(_cache, tmp_path_factory) -> Iterator[Server]:
    """The demo, served for all tests that break nothing."""
    with serving(
        tmp_path_factory.mktemp("server"), "demo", *(["--device", DEVICE] if DEVICE != "cpu" else [])
    ) as found:
        yield found


@pytest.fixture(scope="session")
def model(_cache):
    """The demo in this process: what the server must answer."""
    return load("demo", device=DEVICE)


#: Names that the tokens around a hole have in ``coder``.
FIM = (b"<PRE>", b"<SUF>", b"<MID>")


@pytest.fixture(scope="session")
def coder(model, tmp_path_factory) -> Path:
    """The file of the demo with three words of its vocabulary as tokens around a hole."""
    file = tmp_path_factory.mktemp("coder") / "coder.gguf"
    data = Path(model.card.path).read_bytes()
    pieces = map(model.tokenizer.piece, range(model.tokenizer.size))
    words = [piece for piece in pieces if re.fullmatch(b"[a-z]{5}", piece)]
    places = [each for word in words if data.count(each := b"\5\0\0\0\0\0\0\0" + word) == 1][:3]
    for token, mark in zip(places, FIM, strict=True):
        data = data.replace(token, token[:8] + mark)
    file.write_bytes(data)
    return file


@pytest.fixture(scope="session")
def endless(model) -> dict[str, float]:
    """Biases with which no answer of the demo ends by itself."""
    return {str(token): -100 for token in {*model.card.end_tokens, *model.tokenizer.end_tokens}}


@pytest.fixture
def openai_client(server):
    """OpenAI's own client."""
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
