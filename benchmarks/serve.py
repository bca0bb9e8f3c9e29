"""Tokens a second over HTTP beside the engine alone, and beside llama-server on the same file, in turns.

    python benchmarks/serve.py MODEL.gguf [--llama-cpp BUILD/bin] [--streams 1 2 4 8 16] [--turns 5]

Streams are read by one client, all at once, which counts events and reads nothing else of them: it has the same cores.
A figure is the sum of their tokens a second while all of them are answered: from the time when the last one has its
first token until the first one ends, so that no prompt is read in that time. ``engine`` computes the same sequences in
a process without HTTP, ``llama-batched-bench`` as many of llama-server's. Overhead is the median over the turns of
1 - HTTP / engine, of llama-server that of 1 - llama-server / llama-batched-bench. The time to the first token is the
longest of the streams, whose requests come at once; of the gaps between events of a stream 95 % are no longer than the
one that is printed. Both are medians over the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ENGINE = """
import json, sys, time
import rung
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling.sequence import TokenSequence

path, counts, prompts, tokens, threads, context = sys.argv[1], *map(json.loads, sys.argv[2:7])
model = rung.load(path, context=context, parallel=max(counts), threads=threads, device="cpu")
ends = frozenset({*model.card.end_tokens, *model.tokenizer.end_tokens})

def run(form):
    everybody = []
    for prompt in prompts[form]:
        ids = model.tokenizer.encode(prompt)
        everybody.append(TokenSequence(ids, Sampler(Sampling()), ends=ends, context=model.plan.context, most=tokens))
        model.scheduler.add(everybody[-1])
    def count():
        return sum(len(each.ids) - each.prompt for each in everybody)

    while not all(each.ahead for each in everybody):
        model.scheduler.advance(*everybody)
    started, before = time.perf_counter(), count()
    while not any(each.ended for each in everybody):
        for each in everybody:
            while each.take() is not None:
                pass
        model.scheduler.advance(*everybody)
    took, said = time.perf_counter() - started, count() - before
    for each in everybody:
        model.scheduler.cancel(each)
    return said / took

run(0)
print(json.dumps({count: run(1 + form) for form, count in enumerate(counts)}))
"""


#: What answers are, a form for each number of streams, and what they are about. An engine guesses what it said before,
#: and what repeats itself: of these it guesses little, so that a step gives a token.
_FORMS = ("A table of the numbers of", "The story of", "A letter to", "The law about", "A recipe for", "A speech about")
_SUBJECTS = ("the sea", "a baker", "the winter", "a bridge", "two brothers", "the moon", "a garden", "an old clock")
#: Tokens of a prompt at most.
_PROMPT = 40


def prompts_of(count: int, form: int) -> list[str]:
    """Return so many prompts of a form; number 0 is to warm a server up."""
    about = (f"{_SUBJECTS[number % len(_SUBJECTS)]} of house {number}" for number in range(count))
    return [f"{_FORMS[form % len(_FORMS)]} {each}:" for each in about]


def all_prompts(counts: Sequence[int]) -> list[list[str]]:
    """Return the prompts that warm a server up, and those of each number of streams."""
    return [prompts_of(max(counts), 0), *(prompts_of(count, 1 + form) for form, count in enumerate(counts))]


#: Bytes in which the last event of a stream lies.
_END = 4096


class Reader(asyncio.Protocol):
    """Send a request for a stream, and note when how many of its events came."""

    def __init__(self, data: bytes) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.times: list[tuple[float, int]] = []
        self.begun = 0.0
        self._data, self._end = data, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.begun = time.perf_counter()
        transport.write(self._data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Count the events that begin in what came."""
        if count := data.count(b"data: {"):
            self.times.append((time.perf_counter(), count))
        self._end = (self._end + data)[-_END:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.ended.set_result(None)

    @property
    def said(self) -> int:
        """Return the tokens of the answer, which its last event with ``usage`` says. Ends the program without one."""
        if not (found := re.findall(rb'"completion_tokens": *(\d+)', self._end)):
            sys.exit(f"a stream ended without its usage: ...{self._end[-500:].decode(errors='replace')}")
        return int(found[-1])

    def tokens_within(self, first: float, last: float) -> float:
        """Return the tokens that came behind ``first`` and until ``last``."""
        within = sum(count for at, count in self.times if first < at <= last)
        return self.said * within / sum(count for _, count in self.times)


@dataclass(frozen=True)
class Speed:
    """Tokens a second of streams, seconds to the first token of the last of them, and between events."""

    rate: float
    first: float
    gap: float


async def speed(port: int, prompts: list[str], tokens: int) -> Speed:
    """Return the speed of streams that are read at once, its tokens a second while all of them are answered."""
    loop, readers = asyncio.get_running_loop(), list[Reader]()
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        readers.append((await loop.create_connection(lambda data=request: Reader(data), "127.0.0.1", port))[1])
    await asyncio.gather(*(each.ended for each in readers))
    if short := [each.said for each in readers if each.said < tokens]:
        print(f"answers of {short} tokens ended by themselves", file=sys.stderr)
    first, last = max(each.times[0][0] for each in readers), min(each.times[-1][0] for each in readers)
    rate = sum(each.tokens_within(first, last) for each in readers) / (last - first)
    gaps = [after - before for each in readers for (before, _), (after, _) in pairwise(each.times)]
    waited = max(each.times[0][0] - each.begun for each in readers)
    return Speed(rate, waited, statistics.quantiles(gaps, n=20)[-1])


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


def over_http(command: list[str], port: int, options: argparse.Namespace) -> dict[int, Speed]:
    """Return the speed of a server by the number of streams."""
    first, *prompts = all_prompts(options.streams)
    with serving(command, port):
        asyncio.run(speed(port, first, options.tokens))
        speeds = [asyncio.run(speed(port, each, options.tokens)) for each in prompts]
    return dict(zip(options.streams, speeds, strict=True))


def alone(options: argparse.Namespace) -> dict[int, float]:
    """Return tokens a second of the engine by the number of sequences."""
    context = _PROMPT + options.tokens
    numbers = (options.streams, all_prompts(options.streams), options.tokens, options.threads, context)
    command = [sys.executable, "-c", ENGINE, str(options.model), *map(json.dumps, numbers)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(count): found for count, found in json.loads(said.splitlines()[-1]).items()}


def batched(options: argparse.Namespace) -> dict[int, float]:
    """Return tokens a second of llama.cpp without a server by the number of sequences."""
    counts, context = options.streams, (_PROMPT + options.tokens) * max(options.streams)
    command = [str(options.llama_cpp / "llama-batched-bench"), "-m", str(options.model), "-c", str(context)]
    command += ["-npp", str(_PROMPT // 2), "-ntg", str(options.tokens), "-npl", ",".join(map(str, counts))]
    command += ["-t", str(options.threads), "--output-format", "jsonl"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {each["pl"]: each["speed_tg"] for each in found}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context, most = _PROMPT + options.tokens, max(options.streams)
    common = ["--port", str(port), "--threads", str(options.threads), "--parallel", str(most)]
    ours = [sys.executable, "-m", "rung", "serve", str(options.model), *common]
    ours += ["--context", str(context), "--device", "cpu"]
    theirs = [str(options.llama_cpp / "llama-server"), "-m", str(options.model), *common] if options.llama_cpp else []
    turns = []
    for _ in range(options.turns):
        peer = over_http([*theirs, "-c", str(context * most)], port, options) if theirs else {}
        turns.append((alone(options), over_http(ours, port, options), peer, batched(options) if theirs else {}))
    print(f"{options.model.stem}, {options.threads} threads, {options.turns} turns")
    for count in options.streams:
        engine, http = [turn[0][count] for turn in turns], [turn[1][count] for turn in turns]
        lost = statistics.median(1 - b.rate / a for a, b in zip(engine, http, strict=True))
        line = f"  {count:3} streams  engine {statistics.median(engine):8.1f}  HTTP {described(http)}"
        line += f"  overhead {lost:+.1%}"
        if theirs:
            peers = [turn[2][count] for turn in turns]
            ratio = statistics.median(b.rate / c.rate for b, c in zip(http, peers, strict=True))
            line += f"  llama-server {described(peers)}  ratio {ratio:.2f}"
            lost = statistics.median(1 - turn[2][count].rate / turn[3][count] for turn in turns)
            line += f"  its overhead {lost:+.1%}"
            alone_ratio = statistics.median(turn[0][count] / turn[3][count] for turn in turns)
            line += f"  engine / llama-batched-bench {alone_ratio:.2f}"
        print(line, flush=True)


def described(speeds: list[Speed]) -> str:
    """Return the medians of speeds in words."""
    rate, first, gap = (statistics.median(getattr(each, name) for each in speeds) for name in ("rate", "first", "gap"))
    return f"{rate:8.1f} tokens/s, first {first * 1e3:5.0f} ms, gap {gap * 1e3:5.1f} ms"


if __name__ == "__main__":
    main()
