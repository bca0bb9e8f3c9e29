"""The simulator against runs: one to four unlike nodes, three traces.

    python -m benchmarks.fleet.traces [--shares 0.1 0.2 0.4 0.2] [--seconds 12] [--load 0.6] [--tokens 100]

Nodes are held to shares of a core by control groups (version 1); they leave one after the other. Before each trace the
rates are taken that nodes are known for (``rung fleet status --json``), and the simulator gets these with the same
requests at the same times: evenly at 60 % of what the nodes can take, as many in bursts four seconds apart, and evenly
with prompts of 300 tokens. Printed are tokens a second and the 95th percentile of first tokens, of the run and the
simulator. Needs root, Linux and Ray.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from benchmarks.fleet.parts import (
    chat,
    fleet,
    leave,
    measure_again,
    p95,
    streamed,
    tokens,
)
from benchmarks.fleet.speed import rates_of, without_end
from tests.support.fleet import Machine

from rung.fleet.router import Rates
from rung.fleet.simulator import Request, SimulatedNode, Simulation, poisson

#: Tokens of short prompts and of long ones, tokens of answers to these, and seconds between bursts.
_SHORT, _LONG, _LONG_ANSWER, _APART = 16, 300, 40, 4.0
#: Characters to a token of the demo, and requests by which nodes are known before they are compared.
_CHARACTERS, _KNOWN = 1, 64


def capacity(nodes: Sequence[tuple[int, Rates]], prompt: int, most: int) -> float:
    """Return the requests a second that nodes can take."""
    return sum(1 / (prompt / rates.prefill + most / rates.decode_sum) for _, rates in nodes)


def trace(kind: str, nodes: Sequence[tuple[int, Rates]], load: float, seconds: float, most: int) -> list[Request]:
    """Return the requests of a trace."""
    if kind == "long prompts":
        return poisson(load * capacity(nodes, _LONG, _LONG_ANSWER), seconds, _LONG, _LONG_ANSWER, seed=1)
    rate = load * capacity(nodes, _SHORT, most)
    if kind == "steady":
        return poisson(rate, seconds, _SHORT, most, seed=1)
    count = max(round(rate * _APART), 1)
    return [Request(_APART * k, _SHORT, most) for k in range(max(round(seconds / _APART), 1)) for _ in range(count)]


def sent(head: Machine, requests: Sequence[Request], kind: str) -> list[dict[str, Any]]:
    """Return the answers to requests that are sent at their times."""
    bodies = []
    for number, each in enumerate(requests):
        words = f"{number} {kind} " + "x y " * (max(each.prompt - _SHORT, 0) * _CHARACTERS // 4)
        bodies.append(streamed(chat(number, each.tokens, words)) | {"logit_bias": without_end()})
    found = head.ask_all(bodies, at=[each.time for each in requests])
    assert all(each["status"] == 200 for each in found), [each for each in found if each["status"] != 200][:2]
    return found


def compared(head: Machine, count: int, requests: Sequence[Request], kind: str) -> None:
    """Run a trace and simulate it; print both."""
    nodes = rates_of(head)
    assert len(nodes) == count, nodes
    found = sent(head, requests, kind)
    end = max(request.time + each["seconds"] for request, each in zip(requests, found, strict=True))
    real, first = tokens(found) / (end - requests[0].time), p95(each["first"] for each in found)
    known = [
        Request(request.time, int(re.findall(r'"prompt_tokens":\s*(\d+)', each["content"])[-1]), request.tokens)
        for request, each in zip(requests, found, strict=True)
    ]
    named = [SimulatedNode(str(number), slots, rates) for number, (slots, rates) in enumerate(nodes)]
    said = Simulation(named).run(known)
    print(
        f"| {count} | {kind} | {len(requests)} of {known[0].prompt} | {real:,.0f} | {said.tokens_per_second:,.0f} | "
        f"{said.tokens_per_second / real - 1:+.0%} | {first:.2f} s | {said.first_token_p95:.2f} s | "
        f"{said.first_token_p95 / first - 1:+.0%} |",
        flush=True,
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.2, 0.4, 0.2])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--tokens", type=int, default=100)
    arguments = parser.parse_args()
    print("| nodes | trace | requests | tokens/s | simulated | out | first token p95 | simulated | out |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    options = ("--threads", "1", "--parallel", "4")
    with fleet(len(arguments.shares), *options, shares=arguments.shares) as (head, *nodes):
        measure_again(head, nodes)
        for count in range(len(nodes), 0, -1):
            sent(head, [Request(0.0, _SHORT, arguments.tokens)] * _KNOWN, f"known {count}")
            for kind in ("steady", "bursts", "long prompts"):
                compared(
                    head, count, trace(kind, rates_of(head), arguments.load, arguments.seconds, arguments.tokens), kind
                )
            if count > 1:
                leave(nodes[count - 1])


if __name__ == "__main__":
    main()
