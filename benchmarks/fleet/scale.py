"""Fleets of 10 to 10,000 simulated nodes: what they give, how long a first token takes, and what simulating costs.

    python -m benchmarks.fleet.scale [--nodes 10 100 1000 10000] [--load 0.7 0.95] [--seconds 30]

Three kinds of nodes in equal parts, of 1 : 2 : 4 (20, 40 and 80 tokens a second alone, twice that together), take
requests that come evenly, of 256 tokens and 128 of answer. The router is that of the real fleet.
"""

from __future__ import annotations

import argparse
import time

from rung.fleet.router import Rates
from rung.fleet.simulator import SimulatedNode, Simulation, poisson

#: Tokens of prompts and of answers.
PROMPT, ANSWER = 256, 128


def main() -> None:
    """Simulate and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 0.95])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    print("| nodes | load | requests | tokens/s | first token, median and p95 | nodes busy | simulated in, a request |")
    print("|---|---|---|---|---|---|---|")
    for count in options.nodes:
        rates = [Rates(400.0 * k, 20.0 * k, 40.0 * k) for k in (1, 2, 4)]
        nodes = [SimulatedNode(f"n{number}", 4, rates[number % 3]) for number in range(count)]
        most = sum(1 / (PROMPT / node.rates.prefill + ANSWER / node.rates.decode_sum) for node in nodes)
        for load in options.load:
            trace = poisson(load * most, options.seconds, PROMPT, ANSWER)
            begun = time.perf_counter()
            found = Simulation(nodes).run(trace)
            cost = (time.perf_counter() - begun) / len(trace)
            first = f"{found.first_token_median:.2f} s, {found.first_token_p95:.2f} s"
            row = f"{count:,} | {load:.0%} | {len(trace):,} | {found.tokens_per_second:,.0f} | {first}"
            print(f"| {row} | {found.utilization:.0%} | {cost * 1e3:.2f} ms |", flush=True)


if __name__ == "__main__":
    main()
