"""Replicas and nodes that are killed in the middle of answers: what is lost, and which bytes differ.

    python -m benchmarks.fleet.kills [--rounds 20] [--answers 24] [--tokens 200]

Each round kills the replica of one of two nodes at a random moment, and waits until it is back. Needs root, Linux and
Ray. Exits with 1 where an answer is lost or differs from the one without a kill.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time

from benchmarks.fleet.parts import chat, fleet, kill_replica, text, wait_ready


def main() -> None:
    """Kill, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    chance = random.Random(0)
    bodies = [chat(number, given.tokens) for number in range(given.answers)]
    lost = different = 0
    with fleet(2) as (head, *nodes):
        begun = time.monotonic()
        whole = [text(each) for each in head.ask_all(bodies)]
        seconds = time.monotonic() - begun
        for number in range(given.rounds):
            victim = nodes[number % 2]
            timer = threading.Timer(chance.random() * seconds, kill_replica, (victim,))
            timer.start()
            found = head.ask_all(bodies)
            timer.join()
            lost += sum(each["status"] != 200 for each in found)
            different += sum(text(a) != b for a, b in zip(found, whole, strict=True) if a["status"] == 200)
            wait_ready(head, 2)
        print(f"{given.rounds} kills, {given.rounds * given.answers:,} answers: {lost} lost, {different} differ")
    sys.exit(1 if lost or different else 0)


if __name__ == "__main__":
    main()
