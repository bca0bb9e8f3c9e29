"""Time prompts, with the page faults that they take, of this tree and of another one in turns.

    python benchmarks/prompts.py MODEL ... [--tokens 460] [--old FOLDER/src] [--turns 2] [--threads 2]

A turn is a fresh process that reads four prompts of so many tokens, after one that compiles what is needed; it prints
the median of the four, page faults and seconds of the system for one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import random, resource, statistics, sys, time
import rung

path, tokens, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = rung.load(path, context=tokens + 8, threads=threads)
encode = model.tokenizer.encode

def prompt(number):
    chance = random.Random(number)  # no two prompts begin alike
    words = [chance.choice("the model runs on a device with some memory of many people".split()) for _ in range(tokens)]
    while len(encode(text := " ".join(words))) > tokens:
        words.pop()
    start = time.perf_counter()
    list(model.generate(text, raw=True, max_tokens=1))
    return (time.perf_counter() - start) * tokens / len(encode(text))

prompt(1)
before = resource.getrusage(resource.RUSAGE_SELF)
seconds = [prompt(2 + number) for number in range(4)]
after = resource.getrusage(resource.RUSAGE_SELF)
faults, system = after.ru_minflt - before.ru_minflt, after.ru_stime - before.ru_stime
print(f"{statistics.median(seconds) * 1e3:.0f} ms, {faults / 4:.0f} page faults, {system / 4:.3f} s of the system")
"""


def measure(path: Path, source: Path, options: argparse.Namespace) -> str:
    """Return the output of the program with the package of a source folder."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(options.tokens), str(options.threads)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def main() -> None:
    """Print a line for each model, tree and turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=460)
    parser.add_argument("--old", type=Path, help="the src of another tree")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    trees = {"new": Path(__file__).resolve().parent.parent / "src", **({"old": options.old} if options.old else {})}
    for path in options.models:
        for _ in range(options.turns):
            for name, source in trees.items():
                print(f"{path.stem}, {options.tokens} tokens, {name}: {measure(path, source, options)}", flush=True)


if __name__ == "__main__":
    main()
