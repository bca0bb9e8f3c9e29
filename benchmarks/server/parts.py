"""Shared by the scripts: a server, a client that shows its bytes, and findings."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

#: Seconds until a server must be ready, and in which any answer must have come.
START_SECONDS, ANSWER_SECONDS = 120.0, 60.0

T = TypeVar("T")


@dataclass
class Findings:
    """Findings of a script: ``counts`` of what it did, and a sentence for each promise that does not hold."""

    counts: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def count(self, name: str, more: float = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + more

    def most(self, name: str, value: float) -> None:
        """Keep the largest value under a name."""
        self.counts[name] = max(self.counts.get(name, 0), value)

    def expect(self, holds: bool, sentence: str) -> None:
        """Note a promise that does not hold."""
        if not holds:
            self.broken.append(sentence)

    def show(self) -> int:
        """Print all; return the exit code."""
        for name, count in sorted(self.counts.items()):
            print(f"  {name:44} {count:12,.6g}")
        for sentence in self.broken[:20]:
            print(f"BROKEN: {sentence}")
        print("all promises hold" if not self.broken else f"{len(self.broken)} promises do not hold", flush=True)
        return 1 if self.broken else 0


class Server:
    """A running ``rung serve`` of which ``said`` is the file of what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self._said = process, said
        self.port = int(self._first(r"http://\S+:(\d+)"))

    def _first(self, pattern: str) -> str:
        for _ in range(int(START_SECONDS / 0.05)):  # as ``within`` counts seconds
            if self.process.poll() is not None:
                break
            if found := re.search(pattern, self.said()):
                return found[1]
            time.sleep(0.05)
        raise RuntimeError(f"the server is not ready: {self.said()}")

    def said(self) -> str:
        """Return its output."""
        return self._said.read_text(encoding="utf-8", errors="replace")

    def engines(self) -> list[int]:
        """Return the ids of its engines' processes."""
        return children(self.process.pid)


def children(process: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    command = ["pgrep", "-P", str(process)]
    return [int(each) for each in subprocess.run(command, capture_output=True, check=False).stdout.split()]


def memory(process: int, name: str = "VmRSS") -> int:
    """Return bytes that are resident (``VmRSS``), or were at most (``VmHWM``)."""
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    return 0 if found is None else int(found[1]) * 1024


@contextlib.contextmanager
def serving(model: str, *arguments: str, source: Path | None = None) -> Iterator[Server]:
    """Run a server, of the version of rung in ``source`` where it is another, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        command = [sys.executable, "-P", "-m", "rung", "serve", model, "--port", "0", *arguments]
        paths = [*([] if source is None else [str(source.resolve())]), *filter(None, sys.path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with said.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
            try:
                yield Server(process, said)
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


@dataclass(frozen=True)
class Reply:
    """A response: its status (0: the connection was closed without one), headers in lower case, and its content."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the document in it."""
        return json.loads(self.content)


def request(path: str, body: Any = None, *headers: str, method: str = "") -> bytes:
    """Return the bytes of a request after which the connection is closed; bytes as a body are sent as they are."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [] if body is None else ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("utf-8", "surrogateescape") + data


def parse(data: bytes) -> Reply:
    """Return the first response in what a server sent."""
    head, _, content = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not lines[0].startswith("HTTP/1.1 "):
        return Reply(0, {}, data)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        content = _unchunked(content)
    return Reply(int(lines[0].split(" ")[1]), headers, content)


def _unchunked(data: bytes) -> bytes:
    parts = []
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            return b"".join(parts)
        parts.append(data[:length])
        data = data[length + 2 :]


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect until the block ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``. Raises ``TimeoutError`` after so many seconds, of which those in which this process
    was stopped count once: whoever stops it stops the server, too."""
    task = asyncio.create_task(work)
    try:
        for _ in range(math.ceil(seconds)):
            if (await asyncio.wait({task}, timeout=1.0))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def call(port: int, path: str, body: Any = None, *headers: str, method: str = "") -> Reply:
    """Return the response to a request. Raises ``TimeoutError`` where it does not come whole."""
    return await within(ANSWER_SECONDS, _call(port, request(path, body, *headers, method=method)))


async def _call(port: int, data: bytes) -> Reply:
    async with connected(port) as (reader, writer):
        writer.write(data)
        return parse(await reader.read(-1))


async def events(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """Yield the documents of a stream of server-sent events."""
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


async def at_once(jobs: Sequence[Callable[[], Awaitable[None]]], streams: int) -> None:
    """Run jobs, so many at a time, each when one before it has ended."""
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            await job()

    await asyncio.gather(*(work() for _ in range(streams)))


async def idle(port: int, seconds: float = ANSWER_SECONDS) -> float:
    """Return after how many seconds nothing is computed any more. Raises ``TimeoutError``."""
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            text = (await call(port, "/metrics")).content.decode()
            found = re.findall(r"^rung_requests_(?:processing|deferred) (\S+)$", text, re.MULTILINE)
            if not any(map(float, found)):
                return time.monotonic() - begun
            await asyncio.sleep(0.01)


async def metric(port: int, name: str) -> float:
    """Return a value of ``/metrics``."""
    text = (await call(port, "/metrics")).content.decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise KeyError(name)
    return float(found[1])


async def endless(port: int) -> dict[str, int]:
    """Return biases with which no answer of the demo ends by itself."""
    names = ["<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<|end|>", "<end_of_turn>"]
    found: dict[str, int] = {}
    for name in names:
        ids = (await call(port, "/tokenize", {"content": name})).json()["tokens"]
        if len(ids) == 1:
            found[str(ids[0])] = -100
    return found


def arguments(text: str | None, count: int) -> argparse.ArgumentParser:
    """Return the parser of a script's options."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="demo")
    return parser
