"""``rung quantize --fleet`` over three unlike nodes beside each of them alone: seconds, and bytes.

    python -m benchmarks.fleet.quantize MODEL [--format q4_k] [--shares 0.15 0.3 0.6] [--rounds 3]

Nodes are held to shares of a core by control groups (version 1); the command runs on the head, which encodes nothing.
It is timed with all nodes, then with each while it is alone in the fleet; the work of all in a second is given as a
share of the sum, by what the command says of encoding and writing, and by all of it: the command itself begins, finds
the fleet and ends in the same time whoever encodes. Encoders begin with the first command after a node has joined,
which is given apart; then the median of ``--rounds`` counts (with 0 of them the first one). The file must be that of
one machine. Needs root, Linux and Ray; exits with 1 where bytes differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fleet.parts import fleet, one_by_one
from tests.support.fleet import Machine


def seconds(head: Machine, model: str, target: Path, format: str, *options: str) -> tuple[float, float]:
    """Quantize a model from a machine; return how long encoding and writing took, and the whole command."""
    target.unlink(missing_ok=True)
    begun = time.monotonic()
    done = head.rung("quantize", model, str(target), "--format", format, "--json", *options, seconds=900)
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["seconds"]), took


def medians(head: Machine, model: str, target: Path, format: str, rounds: int) -> tuple[float, float]:
    """Return the medians of both of several commands, after one that has encoders begin."""
    first = seconds(head, model, target, format, "--fleet")
    found = [seconds(head, model, target, format, "--fleet") for _ in range(rounds)]
    shown = ", ".join(f"{encoding:.1f} of {whole:.1f}" for encoding, whole in found)
    print(f"encoders begin: {first[0]:.1f} of {first[1]:.1f} s; then {shown or 'nothing'} s", flush=True)
    found = found or [first]
    return statistics.median(each[0] for each in found), statistics.median(each[1] for each in found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--format", default="q4_k")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.15, 0.3, 0.6])
    options = parser.parse_args()
    model = str(Path(options.model).resolve())
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(len(options.shares), "--threads", "1", shares=options.shares) as (head, *nodes),
    ):
        places = [Path(folder) / f"{number}.gguf" for number in range(len(nodes) + 2)]
        together = medians(head, model, places[0], options.format, options.rounds)
        single = [
            medians(head, model, places[number + 1], options.format, options.rounds)
            for number in one_by_one(head, nodes, options.shares)
        ]
        seconds(head, model, places[-1], options.format, "--threads", "1")
        contents = [path.read_bytes() for path in places]
        is_same = all(content == contents[-1] for content in contents)
    for index, what in enumerate(("encoding and writing", "the whole command")):
        rate = 1 / together[index] / sum(1 / each[index] for each in single)
        alone = ", ".join(f"{each[index]:.1f}" for each in single)
        print(f"{what}: together {together[index]:.1f} s, alone {alone} s: {rate:.0%} of their sum")
    print(f"{len(contents[-1]):,} bytes, those of one machine: {is_same}")
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
