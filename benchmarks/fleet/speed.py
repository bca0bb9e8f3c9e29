"""Three unlike nodes together beside the sum of what each does alone.

    python -m benchmarks.fleet.speed [--shares 0.15 0.3 0.6] [--requests 64] [--tokens 200]

Nodes are held to shares of a core by control groups (version 1). The same requests are sent at once to each node alone
(its tokens a second) and to all of them; the ratio of the latter to the sum of the former is printed. Equal turns would
reach 3 times the slowest: 43 % of the sum for 1 : 2 : 4. The first tokens are compared with those of an oracle: the
same router with the rates that the nodes had alone, simulated. Needs root, Linux and Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import functools

from benchmarks.fleet.parts import chat, fleet, held_to, kill_replica, p95, status, streamed, tokens, wait_ready
from tests.support.fleet import Machine

import rung
from rung.fleet.router import Rates
from rung.fleet.simulator import Outcome, SimulatedNode, Simulation, burst

#: Tokens of the prompts.
_PROMPT = 14


def rate(head: Machine, requests: int, most: int, words: str) -> tuple[float, float, float]:
    """Return tokens a second of requests that are sent at once, and the 95th percentiles of the seconds to their first
    tokens and to their last."""
    endless = {"logit_bias": without_end()}
    found = head.ask_all([streamed(chat(number, most, words) | endless) for number in range(requests)])
    assert all(each["status"] == 200 for each in found), [each for each in found if each["status"] != 200][:2]
    seconds = [each["seconds"] for each in found]
    first = [each["first"] or each["seconds"] for each in found]
    return tokens(found) / max(seconds), p95(first), p95(seconds)


@functools.cache
def without_end() -> dict[str, float]:
    """Return biases with which no answer of the demo ends by itself: a run of a second measures little."""
    model = rung.load("demo", device="cpu")
    return {str(token): -100.0 for token in {*model.card.end_tokens, *model.tokenizer.end_tokens}}


def rates_of(head: Machine) -> list[tuple[int, Rates]]:
    """Return how many answers each node computes at once, and the rates that it measured."""
    models = [each["models"][0] for each in status(head)["nodes"] if each["models"]]
    return [(each["slots"], Rates(**each["rates"])) for each in models]


def simulated(nodes: list[tuple[int, Rates]], requests: int, most: int) -> Outcome:
    """Return what the router makes of nodes with these rates."""
    named = [SimulatedNode(str(number), slots, rates) for number, (slots, rates) in enumerate(nodes)]
    return Simulation(named).run(burst(requests, _PROMPT, most))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.15, 0.3, 0.6])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    alone: list[float] = []
    known: list[tuple[int, Rates]] = []
    options = ("--threads", "1", "--parallel", "4")
    for number, share in enumerate(given.shares, 1):
        with fleet(1, *options) as (head, node), held_to(node, share):
            kill_replica(node)  # the next one measures itself as it is held
            head.wait_for("(?s)is lost.*is ready on n1")
            alone.append(rate(head, max(int(given.requests * share), 8), given.tokens, "alone")[0])
            slots, rates = rates_of(head)[0]
            known.append((slots, Rates(rates.prefill, min(rates.decode, alone[-1]), alone[-1])))
            print(f"node {number}, {share:g} of a core: {alone[-1]:.1f} tokens/s", flush=True)
    with fleet(len(given.shares), *options) as (head, *nodes), contextlib.ExitStack() as stack:
        for node, share in zip(nodes, given.shares, strict=True):
            stack.enter_context(held_to(node, share))
            kill_replica(node)
        head.wait_for("(?s)" + "is lost.*" * len(nodes))
        wait_ready(head, len(nodes))
        measured = rates_of(head)
        together, first, last = rate(head, given.requests, given.tokens, "together")
    own, oracle = (simulated(each, given.requests, given.tokens) for each in (measured, known))
    print("measured by the nodes themselves:", [rates for _, rates in measured])
    print(f"simulated from that: {own.tokens_per_second:.1f} tokens/s, first token p95 {own.first_token_p95:.1f} s")
    print(f"oracle: {oracle.tokens_per_second:.1f} tokens/s, first token p95 {oracle.first_token_p95:.1f} s")
    print(f"together: {together:.1f} tokens/s, {together / sum(alone):.0%} of their sum {sum(alone):.1f}")
    print(f"first token p95 {first:.1f} s, {first / oracle.first_token_p95:.2f} x the oracle's; whole p95 {last:.1f} s")


if __name__ == "__main__":
    main()
