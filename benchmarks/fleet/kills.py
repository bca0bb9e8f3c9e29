"""Nodes that are lost in the middle of answers: which answers are lost with them, and which bytes differ.

    python -m benchmarks.fleet.kills [--rounds 20] [--answers 24] [--tokens 200] [--ways replica node cut slow]

Each round harms one of two nodes at a random moment, in the next of these ways, and waits until it is back:

- replica: the process with the model is killed (-9);
- node: all processes of the node are killed, those of Ray too;
- cut: its network takes and gives nothing more, without a reset; it comes back when the answers are there;
- slow: it gets a tenth of what it had of the processor.

Needs root, Linux and Ray. Exits with 1 where an answer is lost or differs from the one without harm.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter

from benchmarks.fleet.parts import chat, fleet, hold, kill_replica, rejoin, text, wait_ready
from tests.support.fleet import Machine

WAYS = ("replica", "node", "cut", "slow")
#: Cores that a slow node has, and that one has which is slow no longer.
_SLOW, _WHOLE = 0.1, 2.0


def harm(victim: Machine, way: str) -> None:
    """Harm a node."""
    if way == "replica":
        kill_replica(victim)
    elif way == "node":
        victim.kill()
    elif way == "cut":
        victim.link("down")
    else:
        hold(victim, _SLOW)


def mend(head: Machine, victim: Machine, name: str, way: str) -> None:
    """Have a node back that was harmed."""
    if way == "slow":
        hold(victim, _WHOLE)
    if way == "cut":
        victim.link("up")
    if way in ("cut", "node"):
        rejoin(head, victim, name)
    wait_ready(head, 2)


def main() -> None:
    """Harm, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    chance = random.Random(0)
    bodies = [chat(number, options.tokens) for number in range(options.answers)]
    rounds, lost, different = Counter[str](), Counter[str](), Counter[str]()
    with fleet(2) as (head, *nodes):
        begun = time.monotonic()
        whole = [text(each) for each in head.ask_all(bodies)]
        seconds = time.monotonic() - begun
        for number in range(options.rounds):
            way, node = options.ways[number % len(options.ways)], number // len(options.ways) % 2
            timer = threading.Timer(chance.random() * seconds, harm, (nodes[node], way))
            timer.start()
            begun = time.monotonic()
            found = head.ask_all(bodies)
            took = time.monotonic() - begun
            timer.join()
            rounds[way] += 1
            lost[way] += sum(each["status"] != 200 for each in found)
            different[way] += sum(text(a) != b for a, b in zip(found, whole, strict=True) if a["status"] == 200)
            print(f"{number + 1}: {way}, {took:.1f} s; lost {lost[way]}, differ {different[way]}", flush=True)
            mend(head, nodes[node], f"n{node + 1}", way)
    for way, count in rounds.items():
        print(f"{way}: {count} rounds, {count * options.answers:,} answers: {lost[way]} lost, {different[way]} differ")
    sys.exit(1 if lost.total() or different.total() else 0)


if __name__ == "__main__":
    main()
