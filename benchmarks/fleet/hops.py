"""The time of a hop between two parts of a divided model, by itself: over Ray, and as a token of an answer has it.

    python -m benchmarks.fleet.hops [--calls 300] [--rate 100mbit]

Two nodes in network namespaces. Over Ray: an actor on the first one sends hidden states to one on the second, which
returns them at once, as nodes with parts of a model do: for the widths of the demo, SmolLM2 and a 2B, and 1 to 4
sequences. Of a token: the demo is divided over both, and what a token of one answer takes beyond the steps of both
parts, which are timed in this process, is the way there and back with the engine's process on it, and that of the token
to the client; the demo's steps are short. ``--rate`` has the second node send no more than that (tc tbf). Needs root,
Linux and Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from typing import Any

from benchmarks.fleet.layers import ask, first_seconds, in_parts, rate, two_nodes
from benchmarks.fleet.parts import p95, status
from tests.support.fleet import Machine

#: Options with which the demo fits on no node alone, and its name.
_OPTIONS = {"context": 512, "parallel": 1024, "threads": 1, "memory": "650MB", "cache_type": "f16"}
_MODEL = "demo"
#: Values of f32 to a token: of the demo, SmolLM2 135M and Gemma 2B; sequences of a step; calls that are not counted.
_WIDTHS, _SEQUENCES, _WARM = (64, 576, 2048), (1, 2, 4), 20
#: Tokens of an answer whose time is taken, and how often.
_TOKENS, _ROUNDS = 256, 5


class Echo:
    """Hidden states that come back at once; an actor."""

    def compute(self, batch: bytes, hidden: bytes) -> bytes:
        """Return hidden states as they are."""
        return hidden


class Caller:
    """The node with the first part, as it calls the second; an actor whose methods are coroutines, as a replica's."""

    async def seconds(self, echo: Any, size: int, calls: int) -> list[float]:
        """Return the seconds of calls with so many bytes of hidden states, one after the other."""
        batch, hidden, found = bytes(56), bytes(size), []
        for _ in range(calls + _WARM):
            begun = time.perf_counter()
            await echo.compute.remote(batch, hidden)
            found.append(time.perf_counter() - begun)
            await asyncio.sleep(0)
        return found[_WARM:]


def inside(calls: int) -> None:
    """Time calls between the nodes of this machine's fleet; print them as JSON."""
    from rung.fleet import ray_node

    with ray_node.connected():
        import ray

        from rung.fleet.deployments import actor_on

        nodes = {each["NodeName"]: each["NodeID"] for each in ray.nodes() if each["Alive"]}
        caller, echo = actor_on(nodes["one"], Caller), actor_on(nodes["two"], Echo)
        found = {
            f"{width} {count}": ray.get(caller.seconds.remote(echo, 4 * width * count, calls))
            for width in _WIDTHS
            for count in _SEQUENCES
        }
    print(json.dumps(found))


def over_ray(head: Machine, calls: int) -> None:
    """Print what hops take over Ray."""
    done = head.rung_python("-m", "benchmarks.fleet.hops", "--inside", "--calls", str(calls), seconds=600)
    assert done.returncode == 0, done.stderr
    for name, seconds in json.loads(done.stdout.splitlines()[-1]).items():
        width, count = name.split()
        middle, late = 1000 * statistics.median(seconds), 1000 * p95(seconds)
        print(f"width {width}, {count} sequences: {middle:.2f} ms, 95 % within {late:.2f} ms", flush=True)


def of_a_token(head: Machine) -> None:
    """Print what a token of one answer takes beyond the steps of both parts."""
    (layers,) = [
        each["models"][0]["layers"]
        for each in status(head)["nodes"]
        if each["models"][0]["layers"].startswith("layers 0 ")
    ]
    cut = int(layers.split()[-1]) + 1
    both, _, _ = in_parts(_MODEL, cut, {name: value for name, value in _OPTIONS.items() if name != "memory"})
    whole = []
    for _ in range(_ROUNDS):
        single = rate(lambda *of: ask(head, _MODEL, *of), 1, _TOKENS)
        steps = first_seconds(both, 1)  # with the second part, in one process
        whole.append((1 / single, steps, 1 / single - steps))
    token, steps, hop = (1000 * statistics.median(each) for each in zip(*whole, strict=True))
    print(f"a token of one answer: {token:.2f} ms, steps of both parts {steps:.2f} ms")
    print(f"a hop there and back with all processes on the way, and the token's way to the client: {hop:.2f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rate", help="100mbit, say")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.calls)
        return
    options = [word for name, value in _OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with two_nodes(_MODEL, options) as (head, node):
        if arguments.rate:
            shape = ["tc", "qdisc", "add", "dev", "e0", "root", "tbf", "rate", arguments.rate]
            command = ["ip", "netns", "exec", node.namespace, *shape, "burst", "32k", "latency", "100ms"]
            subprocess.run(command, check=True)
        over_ray(head, arguments.calls)
        of_a_token(head)


if __name__ == "__main__":
    main()
