"""Tokens a second over HTTP beside the engine alone, and beside llama-server on the same file, in turns.

    python benchmarks/serve.py MODEL.gguf [--llama-cpp BUILD/bin] [--streams 1 2 4 8 16] [--turns 5]

Streams are read by one client, all at once; a figure is the sum of their tokens after the first ones, from the first
token of all to the last. ``engine`` computes the same sequences in a process without HTTP. Overhead is the median
over the turns of 1 - HTTP / engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ENGINE = """
import json, sys, time
import rung
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling.sequence import TokenSequence

path, counts, prompts, tokens, threads = sys.argv[1], *map(json.loads, sys.argv[2:6])
model = rung.load(path, context=len(prompts[0]) + tokens + 8, parallel=max(counts), threads=threads, device="cpu")
ends = frozenset({*model.card.end_tokens, *model.tokenizer.end_tokens})

def run(count, salt):
    everybody = []
    for ids in prompts[:count]:
        ids = [salt, *ids[1:]]
        everybody.append(TokenSequence(ids, Sampler(Sampling()), ends=ends, context=model.plan.context, most=tokens))
        model.scheduler.add(everybody[-1])
    while not any(each.ahead for each in everybody):
        model.scheduler.advance(*(each for each in everybody if not each.ended))
    started = time.perf_counter()
    while not all(each.ended for each in everybody):
        for each in everybody:
            while each.take() is not None:
                pass
        model.scheduler.advance(*(each for each in everybody if not each.ended))
    took = time.perf_counter() - started
    said = sum(len(each.ids) - each.prompt - 1 for each in everybody)
    for each in everybody:
        model.scheduler.cancel(each)
    return said / took

run(max(counts), 3)
print(json.dumps({count: run(count, 10 + count) for count in counts}))
"""


def prompts_of(count: int, length: int) -> list[list[int]]:
    """Return token ids that begin alike nowhere."""
    return [[5 + (7 * number + 11 * at) % 200 for at in range(length)] for number in range(count)]


async def stream(port: int, ids: list[int], tokens: int) -> tuple[float, float, int]:
    """Return when the first token of an answer came, when it ended, and how many tokens it has."""
    body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "stream": True}
    data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    first, said, last = 0.0, 0, 0.0
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            last = time.perf_counter()
            first = first or last
            said = (event.get("usage") or {}).get("completion_tokens", said)
    writer.close()
    return first, last, said


async def rate(port: int, prompts: list[list[int]], tokens: int) -> float:
    """Return tokens a second of streams that are read at once."""
    found = await asyncio.gather(*(stream(port, ids, tokens) for ids in prompts))
    took = max(last for _, last, _ in found) - min(first for first, _, _ in found)
    return sum(said - 1 for _, _, said in found) / took


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """Run a server until the block ends."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with contextlib.suppress(OSError):
                    if urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200:
                        break
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def over_http(command: list[str], port: int, given: argparse.Namespace) -> dict[int, float]:
    """Return tokens a second of a server by the number of streams."""
    prompts = prompts_of(max(given.streams), given.prompt)
    with serving(command, port):
        asyncio.run(rate(port, [[3, *ids[1:]] for ids in prompts], given.tokens))
        return {
            count: asyncio.run(rate(port, [[10 + count, *ids[1:]] for ids in prompts[:count]], given.tokens))
            for count in given.streams
        }


def alone(given: argparse.Namespace) -> dict[int, float]:
    """Return tokens a second of the engine by the number of sequences."""
    numbers = (given.streams, prompts_of(max(given.streams), given.prompt), given.tokens, given.threads)
    command = [sys.executable, "-c", ENGINE, str(given.model), *map(json.dumps, numbers)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(count): found for count, found in json.loads(said.splitlines()[-1]).items()}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context, most = given.prompt + given.tokens + 8, max(given.streams)
    common = ["--port", str(port), "--threads", str(given.threads), "--parallel", str(most)]
    ours = [
        sys.executable,
        "-m",
        "rung",
        "serve",
        str(given.model),
        *common,
        "--context",
        str(context),
        "--device",
        "cpu",
    ]
    theirs = [str(given.llama_cpp / "llama-server"), "-m", str(given.model), *common] if given.llama_cpp else []
    turns = []
    for _ in range(given.turns):
        peer = over_http([*theirs, "-c", str(context * most)], port, given) if theirs else {}
        turns.append((alone(given), over_http(ours, port, given), peer))
    print(f"{given.model.stem}, {given.threads} threads, {given.turns} turns")
    for count in given.streams:
        engine, http = ([turn[place][count] for turn in turns] for place in (0, 1))
        lost = statistics.median(1 - b / a for a, b in zip(engine, http, strict=True))
        line = f"  {count:3} streams  engine {statistics.median(engine):8.1f}  HTTP {statistics.median(http):8.1f}"
        line += f" tokens/s  overhead {lost:+.1%}"
        if theirs:
            peers = [turn[2][count] for turn in turns]
            ratio = statistics.median(b / c for b, c in zip(http, peers, strict=True))
            line += f"  llama-server {statistics.median(peers):8.1f}  ratio {ratio:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
