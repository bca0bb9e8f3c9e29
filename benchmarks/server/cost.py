"""CPU time and memory of the HTTP process, by the event, beside those of another version of rung.

    python -m benchmarks.server.cost [--before SRC] [--streams 8] [--tokens 400] [--turns 5] [--model demo]

SRC is the ``src`` of another version: the two are served in turns, and each figure is the median of its turns. The CPU
time is the process's own, as the system counts it, so a machine that does other work beside changes it little.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import parts


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU by the event, events a second, and the most bytes that the HTTP process had resident."""

    cpu: float
    rate: float
    memory: int


def _cpu_seconds(process: int) -> float:
    """Return the CPU time that the threads of a process have taken."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


async def _stream(port: int, number: int, tokens: int, bias: dict[str, int]) -> int:
    """Read an answer of so many tokens; return its events."""
    content = f"hello {number}"
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "logit_bias": bias}
    events = 0
    async with parts.connected(port) as (reader, writer):
        writer.write(parts.request("/v1/chat/completions", {**body, "stream": True}))
        while data := await reader.read(2**16):
            events += data.count(b"data: ")
    return events


async def measure(server: parts.Server, options: argparse.Namespace) -> Cost:
    """Read streams of a server, all at once."""
    bias = await parts.endless(server.port)
    for tokens in (16, options.tokens):  # the first ones warm it up
        before, begun = _cpu_seconds(server.process.pid), time.monotonic()
        jobs = (_stream(server.port, number, tokens, bias) for number in range(options.streams))
        events = sum(await asyncio.gather(*jobs))
        took, seconds = _cpu_seconds(server.process.pid) - before, time.monotonic() - begun
    return Cost(1e6 * took / events, events / seconds, parts.memory(server.process.pid, "VmHWM"))


def turn(source: Path, options: argparse.Namespace) -> Cost:
    """Serve one version and measure it."""
    with parts.serving(options.model, "--parallel", str(options.streams), source=source) as server:
        return asyncio.run(measure(server, options))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--model", default="demo")
    options = parser.parse_args()
    sources = {"now": Path(__file__).parents[2] / "src"}
    if options.before is not None:
        sources = {"before": options.before, **sources}
    found: dict[str, list[Cost]] = {name: [] for name in sources}
    for _ in range(options.turns):
        for name, source in sources.items():
            found[name].append(turn(source, options))
    for name, costs in found.items():
        cpu = statistics.median(each.cpu for each in costs)
        rate = statistics.median(each.rate for each in costs)
        memory = max(each.memory for each in costs)
        spread = f"{min(each.cpu for each in costs):.0f} to {max(each.cpu for each in costs):.0f}"
        print(f"{name:8} {cpu:6.1f} µs of CPU an event ({spread}), {rate:8,.0f} events/s, {memory / 1e6:6.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
