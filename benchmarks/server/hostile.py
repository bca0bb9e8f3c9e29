"""Hostile requests: random bodies of the forms of ``/openapi.json`` with something wrong in them, and sockets that
do not behave.

    python -m benchmarks.server.hostile [--count 10000] [--seed 0] [--parts FOLDER] [--schemathesis st]

Nothing may crash or hang, and no answer be above 500 but 503. After every hundred requests ``/health`` is 200 and an
answer has the bytes that it had at the beginning. The engine's memory stays within 5 % of its plan, that of the HTTP
process within 60 MB of where it was after the first tenth. With ``--schemathesis`` it is that program which makes the
requests, of the forms of the document and of other ones, for a server whose answers are of 64 tokens at most.

With ``--parts`` they are sent in whole parts of 10,000, as many as ``--count`` needs, each to a server of its own and
by a seed of its own, from ``--seed`` on. FOLDER has what each part found: a run that was ended goes on behind the
parts that are there, and the outcome is that of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.server.bodies import Bodies
from benchmarks.server.parts import (
    ANSWER_SECONDS,
    Findings,
    Reply,
    Server,
    arguments,
    at_once,
    call,
    connected,
    idle,
    memory,
    parse,
    request,
    serving,
    within,
)

#: Requests at a time, and between two looks at the server.
STREAMS, BATCH = 12, 100
#: Requests of a part.
PART = 10_000
#: What the HTTP process may grow by, and the share that an engine may take beyond its plan.
GROWTH, BEYOND = 60 * 2**20, 1.05
GOOD = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


async def read(reader: asyncio.StreamReader, seconds: float = ANSWER_SECONDS) -> bytes:
    """Return the bytes that come until the other side closes. Raises ``TimeoutError`` where it does not."""
    with contextlib.suppress(ConnectionError):
        return await within(seconds, reader.read(-1))
    return b""


async def exchange(port: int, data: bytes, *, ends: bool = False) -> Reply:
    """Return the response to bytes, after which the own side is closed with ``ends``."""
    async with connected(port) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            if ends:
                writer.write_eof()
        return parse(await read(reader))


class Attacks:
    """Sockets that do not behave; each returns the response, if there has to be one."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port, self._chance = port, chance
        self.all: list[Callable[[], Awaitable[Reply | None]]] = [
            *(partial(self._send, data) for data in self._heads()),
            self._half_closed,
            self._cut_body,
            self._reset,
            self._slow,
            self._pipelined,
            self._never_reads,
            self._chunks_without_end,
            self._random_bytes,
            self._random_chunks,
        ]

    def _heads(self) -> list[bytes]:
        """Return requests of whose heads something is wrong; all are closed by an answer."""
        end = b"Connection: close\r\n\r\n"
        return [
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2**17 + b"\r\n" + end,
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20000 + end,
            b"GET /" + b"a" * 2**17 + b" HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"GET /../../etc/passwd?\xff HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"GET /health HTTP/0.9\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n" + end,
            b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n" + end,
            b"GET /health HTTP/1.1\r\nHost : localhost\r\n" + end,
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n folded\r\n" + end,
            b"TRACE /health HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"\x00\x01 /health HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n" + end,
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" * 2,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _HEAD + b"Content-Length: -1\r\n" + end,
            _HEAD + b"Content-Length: 1, 2\r\n" + end,
            _HEAD + b"Content-Length: 99999999999999999999999\r\n" + end,
            _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + end + b"0\r\n\r\n",
            _HEAD + b"Transfer-Encoding: chunked\r\n" + end + b"zz\r\n",
            _HEAD + b"Transfer-Encoding: chunked\r\n" + end + b"fffffffffffffffff\r\n",
            _HEAD + b"Transfer-Encoding: gzip, chunked\r\n" + end + b"0\r\n\r\n",
            _HEAD + b"Authorization: Bearer \xff\xfe\r\nx-api-key: \x80\r\nContent-Length: 2\r\n" + end + b"{}",
        ]

    async def _send(self, data: bytes) -> Reply | None:
        return await exchange(self._port, data, ends=True)

    async def _half_closed(self) -> Reply | None:
        """A client that closes its side once it has sent all may still read."""
        return await exchange(self._port, request("/v1/chat/completions", GOOD), ends=True)

    async def _cut_body(self) -> Reply | None:
        data = request("/v1/chat/completions", GOOD)
        return await exchange(self._port, data[: len(data) - self._chance.randint(1, 40)], ends=True)

    async def _reset(self) -> Reply | None:
        """Send a request for a stream and reset the connection, at a random moment."""
        async with connected(self._port) as (_, writer):
            writer.write(request("/v1/chat/completions", {**GOOD, "stream": True, "max_tokens": 200}))
            await asyncio.sleep(self._chance.random() * 0.1)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return None

    async def _slow(self) -> Reply | None:
        """Send a request in pieces."""
        data = request("/v1/chat/completions", GOOD)
        async with connected(self._port) as (reader, writer):
            for start in range(0, len(data), 16):
                writer.write(data[start : start + 16])
                await asyncio.sleep(0.002)
            return parse(await read(reader))

    async def _pipelined(self) -> Reply | None:
        first = request("/v1/chat/completions", GOOD).replace(b"Connection: close\r\n", b"")
        return await exchange(self._port, first * 3 + request("/v1/models"), ends=True)

    async def _never_reads(self) -> Reply | None:
        """Ask for much and read nothing for a moment."""
        async with connected(self._port) as (_, writer):
            with contextlib.suppress(ConnectionError):
                body = {**GOOD, "stream": True, "max_tokens": 200, "n": 4}
                writer.write(request("/v1/chat/completions", body) + request("/openapi.json") * 50)
                await writer.drain()
                await asyncio.sleep(0.2)
        return None

    async def _chunks_without_end(self) -> Reply | None:
        chunk = b"40000\r\n" + b" " * 2**18 + b"\r\n"
        async with connected(self._port) as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(36):
                    writer.write(chunk)
                    await writer.drain()
            return parse(await read(reader))

    async def _random_chunks(self) -> Reply | None:
        """A body in chunks of random sizes, maybe with trailers and extensions."""
        data, parts = request("/v1/chat/completions", GOOD).partition(b"\r\n\r\n")[2], b""
        while data:
            size = self._chance.randint(1, 30)
            parts += b"%x;a=b\r\n" % len(data[:size]) + data[:size] + b"\r\n"
            data = data[size:]
        head = _HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        return await exchange(self._port, head + parts + b"0\r\nX: y\r\n\r\n", ends=True)

    async def _random_bytes(self) -> Reply | None:
        data = self._chance.randbytes(self._chance.randint(1, 3000))
        return await exchange(self._port, self._chance.choice([data, request("/v1/models") + data]), ends=True)


async def run(server: Server, count: int, seed: int) -> Findings:
    """Send so many requests; return what was found."""
    found, chance = Findings(), random.Random(seed)
    bodies = Bodies((await call(server.port, "/openapi.json")).json(), chance)
    attacks = Attacks(server.port, chance)
    good, engines = await _answer(server), server.engines()
    grown, planned = 0, await _planned(server)
    for start in range(0, count, BATCH):
        jobs = [partial(_one, server.port, bodies, attacks, chance, found) for _ in range(min(BATCH, count - start))]
        await at_once(jobs, STREAMS)
        health = await call(server.port, "/health")
        found.expect(health.status == 200, f"/health is {health.status} after {start + BATCH} requests")
        found.expect(await _answer(server) == good, f"an answer has other bytes after {start + BATCH} requests")
        found.expect(server.engines() == engines, f"the engine has ended within {start + BATCH} requests")
        engines = server.engines()
        if start <= count // 10:
            grown = memory(server.process.pid)
    await idle(server.port)
    said = server.said()
    for sign in ("Traceback", "rung itself failed"):
        found.expect(sign not in said, f"the server wrote {sign}: {said[said.find(sign) : said.find(sign) + 2000]}")
    now, most = memory(server.process.pid), sum(memory(each, "VmHWM") for each in engines)
    found.counts |= {"HTTP process, MB": now / 2**20, "engine at most, MB": most / 2**20, "its plan": planned / 2**20}
    found.expect(now < grown + GROWTH, f"the HTTP process grew from {grown:,} to {now:,} bytes")
    found.expect(most <= planned * BEYOND, f"the engine took {most:,} bytes of {planned:,} that were planned")
    return found


async def _planned(server: Server) -> int:
    """Return the bytes that the loaded models may take."""
    return sum(each["size"] for each in (await call(server.port, "/api/ps")).json()["models"])


async def _answer(server: Server) -> str:
    """Return the answer to a good request, which may have to wait for a place."""
    while (reply := await call(server.port, "/v1/chat/completions", GOOD)).status == 503:
        await asyncio.sleep(0.1)
    return str(reply.json()["choices"][0]["message"])


async def _one(port: int, bodies: Bodies, attacks: Attacks, chance: random.Random, found: Findings) -> None:
    """Send a hostile request and judge what comes back."""
    reply: Reply | None
    if chance.random() < 0.25:
        name = sent = ""
        job = chance.choice(attacks.all)
        name = getattr(job, "__name__", "_head").strip("_")
        make = job
    else:
        method, path, schema = chance.choice(bodies.paths)
        path = path.replace("{id}", chance.choice(["resp_1", "..", "%2e%2e%2f", "a" * 300]))
        body = None if schema is None else bodies.make(schema)
        name, sent = f"{method} {path[:40]}", repr(body)[:600]
        make = partial(_http, port, path, body, method)
    try:
        reply = await make()
    except TimeoutError:
        found.expect(False, f"{name} hangs: {sent}")
        return
    except OSError:
        reply = None
    status = 0 if reply is None else reply.status
    found.count(f"status {status}" if status else "closed without a status")
    found.expect(status > 0 or name != "half_closed", "a client that has only closed its side gets no answer")
    found.expect(status < 500 or status == 503, f"{name} is {status}: {sent} {reply.content[:200] if reply else b''!r}")


async def _http(port: int, path: str, body: bytes | None, method: str) -> Reply:
    return await call(port, path, body, method=method)


async def run_schemathesis(server: Server, program: str, count: int, seed: int) -> Findings:
    """Have schemathesis send about so many requests; return what was found."""
    found, good = Findings(), await _answer(server)
    document = (await call(server.port, "/openapi.json")).json()
    operations = sum(len(each) for each in document["paths"].values())
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text('[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]\n')
        command = [program, "--config-file", config, "run", f"http://127.0.0.1:{server.port}/openapi.json"]
        command += ["--checks", "not_a_server_error", "--seed", str(seed), "--workers", str(STREAMS), "--no-color"]
        command += [
            "--phases",
            "coverage,fuzzing",
            "--max-examples",
            str(max(count // operations // 2, 1)),
            "--no-shrink",
        ]
        command += ["--generation-database", "none", "--suppress-health-check", "all", "--continue-on-failure"]
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
        said = (await process.communicate())[0].decode()
    print(said)
    sent = [int(each.replace(",", "")) for each in re.findall(r"([\d,]+) generated", said)]
    found.count("requests of schemathesis", sum(sent))
    found.expect(process.returncode == 0, "schemathesis found something")
    await idle(server.port)
    found.expect(await _answer(server) == good, "an answer has other bytes after all")
    found.expect("started again" not in server.said(), "an engine has ended")
    found.expect("Traceback" not in server.said(), f"the server wrote a traceback: {server.said()[-2000:]}")
    return found


def run_parts(folder: Path, model: str, count: int, seed: int) -> Findings:
    """Send requests in parts, without those whose findings are in ``folder``; return what all parts found."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings()
    for part in range(seed, seed + -(-count // PART)):
        kept = folder / f"{part}.json"
        if not kept.exists():
            with serving(model, "--parallel", "4") as server:
                new = asyncio.run(run(server, PART, part))
            kept.with_suffix(".new").write_text(json.dumps({"counts": new.counts, "broken": new.broken}))
            kept.with_suffix(".new").replace(kept)
            print(f"seed {part}: {len(new.broken)} promises do not hold", flush=True)
        document = json.loads(kept.read_text())
        found.broken += [f"seed {part}: {each}" for each in document["broken"]]
        for name, value in document["counts"].items():  # sums of requests, and the most of memory
            before = found.counts.get(name, 0)
            found.counts[name] = before + value if name.startswith(("status", "closed")) else max(before, value)
    return found


def main() -> int:
    """Attack a server and print what was found."""
    parser = arguments(__doc__, 10_000)
    parser.add_argument("--parts", type=Path, metavar="FOLDER", help="send them in parts, and go on behind those there")
    parser.add_argument("--schemathesis", metavar="PROGRAM", help="the program st of schemathesis")
    options = parser.parse_args()
    if options.parts is not None:
        if options.schemathesis:
            parser.error("--parts are of our own requests: leave --schemathesis out")
        found = run_parts(options.parts, options.model, options.count, options.seed)
        print(f"{-(-options.count // PART) * PART:,} hostile requests in parts, from seed {options.seed} on")
        return found.show()
    more = ["--context", "64"] if options.schemathesis else []
    with serving(options.model, "--parallel", "4", *more) as server:
        if options.schemathesis:
            found = asyncio.run(run_schemathesis(server, options.schemathesis, options.count, options.seed))
        else:
            found = asyncio.run(run(server, options.count, options.seed))
        print(f"{options.count:,} hostile requests, seed {options.seed}")
        return found.show()


if __name__ == "__main__":
    sys.exit(main())
