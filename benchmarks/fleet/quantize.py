"""``rung quantize --fleet`` over three unlike nodes beside each of them alone: seconds, and bytes.

    python -m benchmarks.fleet.quantize MODEL [--format q4_k] [--shares 0.15 0.3 0.6]

Nodes are held to shares of a core by control groups (version 1); the command runs on the head, which encodes nothing.
It is timed with all nodes, then with each while it is alone in the fleet; the work of all in a second is given as a
share of the sum. The file must be that of one machine. Needs root, Linux and Ray; exits with 1 where bytes differ.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fleet.parts import fleet, held_to, one_by_one
from tests.support.fleet import Machine


def seconds(head: Machine, model: str, target: Path, format: str, *options: str) -> float:
    """Quantize a model from a machine and return how long that took."""
    begun = time.monotonic()
    done = head.rung("quantize", model, str(target), "--format", format, *options, seconds=600)
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    print(f"{took:.1f} s; {done.stderr.strip().splitlines()[-1]}", flush=True)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--format", default="q4_k")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.15, 0.3, 0.6])
    given = parser.parse_args()
    model = str(Path(given.model).resolve())
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(len(given.shares), "--threads", "1") as (head, *nodes),
        contextlib.ExitStack() as stack,
    ):
        for node, share in zip(nodes, given.shares, strict=True):
            stack.enter_context(held_to(node, share))
        places = [Path(folder) / f"{number}.gguf" for number in range(len(nodes) + 2)]
        together = seconds(head, model, places[0], given.format, "--fleet")
        single = [
            seconds(head, model, places[number + 1], given.format, "--fleet")
            for number in one_by_one(head, nodes, given.shares)
        ]
        head.rung("quantize", model, str(places[-1]), "--format", given.format, "--threads", "1", seconds=600)
        contents = [place.read_bytes() for place in places]
        is_same = all(content == contents[-1] for content in contents)
    rate = 1 / together / sum(1 / each for each in single)
    print(f"together {together:.1f} s, alone {', '.join(f'{each:.1f}' for each in single)} s: {rate:.0%} of their sum")
    print(f"{len(contents[-1]):,} bytes, those of one machine: {is_same}")
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
