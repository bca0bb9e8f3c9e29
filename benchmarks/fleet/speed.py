"""Three unlike nodes together beside the sum of what each does alone.

    python -m benchmarks.fleet.speed [--shares 0.15 0.3 0.6] [--requests 64] [--tokens 200] [--rounds 2]

Nodes are held to shares of a core by control groups (version 1). Requests are sent at once to all of them, then to each
while it is alone in the fleet (its tokens a second); the ratio to the sum of the latter is printed. Equal turns would
reach 3 times the slowest: 43 % of the sum for 1 : 2 : 4. The first tokens are compared with those of an oracle: the
same router with the rates that the nodes had alone, simulated. Needs root, Linux and Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fleet.parts import (
    chat,
    fleet,
    measure_again,
    one_by_one,
    p95,
    status,
    streamed,
    tokens,
)
from tests.support.fleet import Machine

import rung
from rung.fleet.router import Rates
from rung.fleet.simulator import Outcome, SimulatedNode, Simulation, burst

#: Tokens of the prompts.
_PROMPT = 14


def ask(head: Machine, requests: int, most: int, words: str) -> list[dict[str, Any]]:
    """Return the answers to requests that are sent at once, each of so many tokens."""
    endless = {"logit_bias": without_end()}
    found = head.ask_all([streamed(chat(number, most, words) | endless) for number in range(requests)])
    assert all(each["status"] == 200 for each in found), [each for each in found if each["status"] != 200][:2]
    return found


def tokens_per_second(found: Sequence[dict[str, Any]]) -> float:
    """Return the tokens a second of answers that were requested at once."""
    return tokens(found) / max(each["seconds"] for each in found)


@functools.cache
def without_end() -> dict[str, float]:
    """Return biases with which no answer of the demo ends by itself: a run of a second measures little."""
    model = rung.load("demo", device="cpu")
    return {str(token): -100.0 for token in {*model.card.end_tokens, *model.tokenizer.end_tokens}}


def rates_of(head: Machine) -> list[tuple[int, Rates]]:
    """Return how many answers each node computes at once, and the rates that it is known for now."""
    models = [each["models"][0] for each in status(head)["nodes"] if each["models"]]
    names = ("prefill", "decode", "decode_sum")
    return [
        (
            each["slots"],
            Rates(
                *(each["rates"][name] * each["speed"] for name in names),
                latency=each["rates"]["latency"] / each["speed"],
            ),
        )
        for each in models
    ]


def simulated(nodes: list[tuple[int, Rates]], requests: int, most: int) -> Outcome:
    """Simulate the router on nodes with these rates."""
    named = [SimulatedNode(str(number), slots, rates) for number, (slots, rates) in enumerate(nodes)]
    return Simulation(named).run(burst(requests, _PROMPT, most))


def cpu_seconds(machine: Machine) -> float:
    """Return the seconds of a core that the processes which a machine runs now have taken."""
    ticks = 0
    for pid in machine.processes():
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def by_node(found: Sequence[dict[str, Any]]) -> str:
    """Return how many answers each node gave, and when its last one ended."""
    ends: dict[str, list[float]] = {}
    for each in found:
        if names := re.findall(r'"node":\s*"(\w+)"', each["content"]):
            ends.setdefault(names[-1], []).append(each["seconds"])
    return ", ".join(f"{name} {len(each)} until {max(each):.1f} s" for name, each in sorted(ends.items()))


def alone(head: Machine, nodes: Sequence[Machine], shares: Sequence[float], requests: int, most: int) -> list[float]:
    """Return the tokens a second of each node while no other one is in the fleet; all leave it."""
    found = []
    for number in one_by_one(head, nodes, shares):
        share = shares[number]
        found.append(tokens_per_second(ask(head, max(int(requests * share), 8), most, f"alone {number}")))
        print(f"node {number + 1}, {share:g} of a core: {found[-1]:.1f} tokens/s", flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.15, 0.3, 0.6])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    options = ("--threads", "1", "--parallel", "4")
    with fleet(len(arguments.shares), *options, shares=arguments.shares) as (head, *nodes):
        measure_again(head, nodes)
        measured = rates_of(head)
        rounds, forecasts = [], [measured]
        for number in range(arguments.rounds):
            before, begun = [cpu_seconds(each) for each in (head, *nodes)], time.monotonic()
            rounds.append(ask(head, arguments.requests, arguments.tokens, f"together {number}"))
            took = time.monotonic() - begun
            forecasts.append(rates_of(head))
            cores = [(cpu_seconds(each) - taken) / took for each, taken in zip((head, *nodes), before, strict=True)]
            print(f"together: {tokens_per_second(rounds[-1]):.1f} tokens/s; {by_node(rounds[-1])}")
            print("cores that the head, with the client, and nodes took:", ", ".join(f"{each:.2f}" for each in cores))
        single = alone(head, nodes, arguments.shares, arguments.requests, arguments.tokens)
    known = [
        (slots, Rates(rates.prefill, min(rates.decode, rate), rate, rates.latency))
        for (slots, rates), rate in zip(measured, single, strict=True)
    ]
    oracle = simulated(known, arguments.requests, arguments.tokens)
    firsts = f"first token p95 {oracle.first_token_p95:.2f} s"
    print(f"simulated from the speeds alone, an oracle: {oracle.tokens_per_second:.1f} tokens/s, {firsts}")
    for found, nodes_then in zip(rounds, forecasts, strict=False):
        rate, first = tokens_per_second(found), p95(each["first"] or each["seconds"] for each in found)
        print(f"together: {rate:.1f} tokens/s, {rate / sum(single):.0%} of their sum {sum(single):.1f}, ", end="")
        print(f"{rate / oracle.tokens_per_second:.0%} of the oracle's; first token p95 {first:.2f} s, ", end="")
        print(f"{first / oracle.first_token_p95:.2f} x the oracle's")
        own = simulated(nodes_then, arguments.requests, arguments.tokens)
        print("  nodes were known for", ", ".join(f"{rates.decode_sum:.0f}" for _, rates in nodes_then), end="")
        print(f" tokens/s before; simulated from that: {own.tokens_per_second / rate - 1:+.0%} tokens/s, ", end="")
        print(f"first token p95 {own.first_token_p95 / first - 1:+.0%}")


if __name__ == "__main__":
    main()
