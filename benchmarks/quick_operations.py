"""Seconds of four operations that must be quick, with their bars; the tests count calls and bytes instead.

    python benchmarks/quick_operations.py

A signature of ``explain`` on the texts that backtracking dislikes most (the slowest of all), the greedy choice among
262,144 logits, the tokenizer of a vocabulary of 256,000, and every device of the catalog. The best of several; CPU
seconds of this thread. The exit status is 1 if one misses its bar. Takes a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from rung.diagnosis import signatures
from rung.engine.sampling import Sampler, Sampling
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.hardware import catalog
from rung.ops import LADDERS

#: What makes backtracking expensive: near misses in a row, and what wildcards swallow. Lines are cut at 5,000 letters.
NASTY = (
    "a" * 5_000,
    " " * 5_000,
    "_a" * 2_500,
    "0" * 5_000,
    "a.b(" * 1_250,
    "x y " * 1_250,
    "'\"`" * 1_600,
    "é" * 5_000,
)


def best(call: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of the fastest of so many calls."""
    taken = []
    for _ in range(times):
        before = time.thread_time()
        call()
        taken.append(time.thread_time() - before)
    return min(taken)


def slowest_signature() -> float:
    """Return the seconds of the slowest search of a signature's pattern."""
    taken = []
    for signature in signatures():
        half = signature.example[: len(signature.example) // 2]
        own = [half * (5_000 // max(1, len(half))), (signature.example[:-1] + "~") * (5_000 // len(signature.example))]
        taken += [best(lambda s=signature, t=text: s.pattern.search(t), 1) for text in (*NASTY, *own)]
    return max(taken)


def greedy() -> float:
    """Return the seconds of a greedy choice."""
    values, sampler = np.random.default_rng(0).standard_normal((1, 262_144)).astype(np.float32), Sampler(Sampling())
    rung = LADDERS["sample"].rung("numba.sample").load()
    state = rung.prepare(threads=1)
    return best(lambda: rung.apply(state, values, sampler.rows([])), 200)


def tokenizer() -> float:
    """Return the seconds until a large vocabulary has encoded two words."""
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"▁w{number}" for number in range(256_000)],
        "tokenizer.ggml.scores": [-float(number) for number in range(256_000)],
        "tokenizer.ggml.token_type": [1] * 256_000,
    }
    return best(lambda: Tokenizer.from_gguf(meta).encode("hello world", special=True, bos=True), 3)


def whole_catalog() -> float:
    """Return the seconds of every product's device."""
    return best(lambda: [catalog.device(product.name) for product in catalog.products()], 5)


#: What is timed, and the most seconds it may take.
BARS = (
    ("slowest signature on 5,000 letters", slowest_signature, 0.2),
    ("greedy choice among 262,144", greedy, 0.001),
    ("vocabulary of 256,000", tokenizer, 1.5),
    ("every device of the catalog", whole_catalog, 0.3),
)


def main() -> int:
    """Print the table and return the exit status."""
    missed = 0
    print("| operation | CPU s | bar | met |\n|---|---|---|---|")
    for name, timed, bar in BARS:
        seconds = timed()
        missed += seconds > bar
        print(f"| {name} | {seconds:.4f} | {bar} | {'no' if seconds > bar else 'yes'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
