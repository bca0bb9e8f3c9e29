"""Tokens a second of several sequences at once, beside llama.cpp's ``llama-batched-bench`` on the same file, in turns.

    python benchmarks/batches.py MODEL.gguf ... [--llama-cpp BUILD/bin] [--sequences 1 2 4 8 16] [--turns 5]

Every sequence has a prompt of its own (``--prompt`` tokens) and gets ``--tokens`` more. A figure is the sum over all
sequences; a ratio is the median over the turns of rung / llama.cpp. Without ``--llama-cpp`` rung is measured alone.
The share is that of the limit: a step reads the file once and multiplies every weight with each row, at the bandwidth
and the int8 rate that ``linear_kernels.py`` measures in the same turns; the cache and all else count for nothing.
``--memory`` prints what memory is planned, and taken when the most sequences come to the end of their context, instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rung.models.open import open_card

PROGRAM = """
import json, sys, time
import rung
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.sampling import Sampler, Sampling, likeliest
from rung.engine.scheduling.sequence import TokenSequence

path, counts, prompt, tokens, threads = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:6])
context = prompt + tokens + 8
model = rung.load(path, context=context, parallel=max(counts), threads=threads)

def run(count, salt):
    scheduler = Scheduler(model.backend, lambda logits, rows: likeliest(logits))
    everybody = []
    for number in range(count):
        ids = [5 + (7 * number + 11 * at + salt) % 200 for at in range(prompt)]
        everybody.append(TokenSequence(ids, Sampler(Sampling()), ends=frozenset(), context=context,
                                       most=tokens, owner=str(salt)))
        everybody[-1].guesser = None  # as llama-batched-bench, and the likeliest of random weights repeat
        scheduler.add(everybody[-1])
    while not all(each.ahead for each in everybody):
        scheduler.advance(*(each for each in everybody if not each.ahead))
    started = time.perf_counter()
    while not all(each.ended for each in everybody):
        for each in everybody:
            each.take()
        scheduler.advance(*(each for each in everybody if not each.ended))
    took = time.perf_counter() - started
    for each in everybody:
        scheduler.cancel(each)
    model.backend.prefixes.clear()
    return count * (tokens - 1) / took

for count in counts:
    run(count, 1)
print(json.dumps({count: run(count, 2) for count in counts}))
"""
MEMORY = """
import json, sys
import rung
from rung.engine.planning import peak_memory
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling.sequence import TokenSequence

path, count, context, threads = sys.argv[1], *map(int, sys.argv[2:5])
model = rung.load(path, context=context, parallel=count, threads=threads)
everybody = []
for number in range(count):
    ids = [5 + (7 * number + 11 * at) % 200 for at in range(context - 8)]
    everybody.append(TokenSequence(ids, Sampler(Sampling()), ends=frozenset(), context=context))
    model.scheduler.add(everybody[-1])
while not all(each.ended for each in everybody):
    for each in everybody:
        each.take()
    model.scheduler.advance(*(each for each in everybody if not each.ended))
print(json.dumps([model.plan.memory, model.plan.placements[0].memory.most, peak_memory()]))
"""


def memory(path: Path, options: argparse.Namespace) -> None:
    """Print the memory of the most sequences at the end of their context, as it is planned and taken."""
    count, context = max(options.sequences), options.prompt + options.tokens
    command = [sys.executable, "-c", MEMORY, str(path), str(count), str(context), str(options.threads)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    planned, most, taken = (value / 2**20 for value in json.loads(said.splitlines()[-1]))
    words = f"{planned:.0f} MB planned (at most {most:.0f}), {taken:.0f} taken, {taken / planned - 1:+.1%}"
    print(f"{path.stem}: {count} sequences of {context} tokens: {words}")


def ours(path: Path, options: argparse.Namespace) -> dict[int, float]:
    """Return tokens a second of rung, by the number of sequences."""
    command = [sys.executable, "-c", PROGRAM, str(path), json.dumps(options.sequences)]
    command += [str(options.prompt), str(options.tokens), str(options.threads)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(count): rate for count, rate in json.loads(said.splitlines()[-1]).items()}


def theirs(path: Path, options: argparse.Namespace) -> dict[int, float]:
    """Return the same of llama.cpp."""
    context = max(options.sequences) * (options.prompt + options.tokens + 8)
    command = [str(options.llama_cpp / "llama-batched-bench"), "-m", str(path), "-c", str(context), "-b", "512"]
    command += [
        "-npp",
        str(options.prompt),
        "-ntg",
        str(options.tokens),
        "-t",
        str(options.threads),
        "--output-format",
        "jsonl",
    ]
    command += ["-npl", ",".join(map(str, options.sequences))]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {int(row["pl"]): float(row["speed_tg"]) for row in rows}


def rates(threads: int) -> tuple[float, float]:
    """Return bytes read and int8 operations a second of this machine, as they are now."""
    program = f"import linear_kernels; print(*linear_kernels.limits({threads}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    bandwidth, rate = map(float, done.stdout.split())
    return bandwidth, rate


def limit(path: Path, count: int, measured: tuple[float, float]) -> float:
    """Return the tokens a second of so many sequences that these rates allow."""
    weights = open_card(path).parameters
    return count / max(path.stat().st_size / measured[0], 2 * count * weights / measured[1])


def main() -> None:
    """Measure every file and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 2, 3, 4, 5, 6, 7, 8, 16])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        for path in options.models:
            memory(path, options)
        return
    print(f"{options.threads} threads, {options.turns} turns, load average {os.getloadavg()[0]:.1f} at the start")
    for path in options.models:
        started, both = time.monotonic(), []
        for _ in range(options.turns):
            measured = rates(options.threads)
            both.append((ours(path, options), theirs(path, options) if options.llama_cpp else {}, measured))
        print(f"{path.stem} ({time.monotonic() - started:.0f} s)")
        for count in options.sequences:
            mine = [turn[0][count] for turn in both]
            share = statistics.median(turn[0][count] / limit(path, count, turn[2]) for turn in both)
            line = f"  {count:3} sequences  {statistics.median(mine):8.1f} tokens/s, {share:.0%} of the limit"
            if options.llama_cpp:
                peer = [turn[1][count] for turn in both]
                ratio = statistics.median(a / b for a, b in zip(mine, peer, strict=True))
                line += f"  llama.cpp {statistics.median(peer):8.1f}  ratio {ratio:.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
