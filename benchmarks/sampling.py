"""Seconds that choosing the tokens of a step takes, beside transformers' processors with torch, in turns.

    python benchmarks/sampling.py [--vocabulary 128256] [--rows 1 4 16] [--threads 2] [--turns 7]

Both get the same logits and settings; transformers gets all rows at once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from rung.engine.sampling import Sampler, Sampling
from rung.ops.sample import LADDER

#: Name, settings, and the same of transformers.
SETTINGS: tuple[tuple[str, dict[str, Any], Callable[[], list[Any]]], ...] = (
    ("greedy", {}, list),
    ("temperature", {"temperature": 0.8}, lambda: [TemperatureLogitsWarper(0.8)]),
    (
        "top-k 40, top-p 0.95",
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
        lambda: [TemperatureLogitsWarper(0.8), TopKLogitsWarper(40), TopPLogitsWarper(0.95)],
    ),
    (
        "top-p 0.95",
        {"temperature": 0.8, "top_p": 0.95},
        lambda: [TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.95)],
    ),
    (
        "min-p 0.05",
        {"temperature": 0.8, "min_p": 0.05},
        lambda: [TemperatureLogitsWarper(0.8), MinPLogitsWarper(0.05)],
    ),
    (
        "typical-p 0.9",
        {"temperature": 0.8, "typical_p": 0.9},
        lambda: [TemperatureLogitsWarper(0.8), TypicalLogitsWarper(0.9)],
    ),
    (
        "repeat 1.1, top-p 0.95",
        {"temperature": 0.8, "repeat_penalty": 1.1, "top_p": 0.95},
        lambda: [RepetitionPenaltyLogitsProcessor(1.1), TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.95)],
    ),
)
#: Tokens of the prompt.
_PROMPT = 512


def milliseconds(call: Callable[[], Any], least: float = 0.05) -> float:
    """Return how long a call takes, from as many as take ``least`` seconds."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < least:
        call()
        count += 1
    return 1000 * (time.perf_counter() - started) / count


def compare(rows: int, vocabulary: int, threads: int, turns: int) -> None:
    """Print a line for each of the settings."""
    random = np.random.default_rng(rows)
    values = (random.standard_normal((rows, vocabulary)) * 2.5).astype(np.float32)
    prompt = random.integers(0, vocabulary, (rows, _PROMPT))
    rung = LADDER.rung("numba.sample").load()
    state = rung.prepare(threads=threads)
    scores, ids = torch.from_numpy(values), torch.from_numpy(prompt)
    for name, settings, processors in SETTINGS:
        samplers = [Sampler(Sampling(seed=row, **settings), prompt[row].tolist()) for row in range(rows)]
        chain = LogitsProcessorList(processors())

        def own(samplers: list[Sampler] = samplers) -> Any:
            return rung.apply(state, values, [each for sampler in samplers for each in sampler.rows([])])

        def theirs(chain: LogitsProcessorList = chain) -> torch.Tensor:
            if not len(chain):
                return scores.argmax(-1)
            return torch.multinomial(chain(ids, scores).softmax(-1), 1)

        own(), theirs()
        found: tuple[list[float], list[float]] = [], []
        for _ in range(turns):
            found[0].append(milliseconds(own))
            found[1].append(milliseconds(theirs))
        ours, peer = map(statistics.median, found)
        print(f"{rows:>2} rows  {name:<24} {ours:8.3f} ms   transformers {peer:8.3f} ms   {peer / ours:6.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for rows in arguments.rows:
        compare(rows, arguments.vocabulary, arguments.threads, arguments.turns)


if __name__ == "__main__":
    main()
