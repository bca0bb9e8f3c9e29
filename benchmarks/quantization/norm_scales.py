"""Measure what scales that are moved into norms (AWQ, arXiv:2306.00978) are worth with and without error feedback.

    python benchmarks/quantization/norm_scales.py ORIGINAL.gguf [--formats q4_0 q2_k] [--every 3]

Columns of q, k and v, and of gate and up, are multiplied by a power of the root mean squares of their inputs, which the
norm before them is divided by: the function stays the same. For each group of matrices that share a norm the power with
the least expected KL is taken (second order, from the statistics, on sampled rows), and the sums are printed beside
those without scales: codes that are nearest, and those of error feedback and descent.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from mixed_texts import mixed

from rung import formats
from rung.conversion.within_budget import Calibration
from rung.core.types import Format
from rung.formats.codec import Floats
from rung.formats.grids import grid
from rung.kernels.cpu import target
from rung.models.lookup import find_card
from rung.models.reader import Reader
from rung.nn.rounding import Metric, round_weight
from rung.quantization.budget import matrices
from rung.quantization.statistics import Sensitivity

_CHARACTERS, _ROWS = 30_000, 64
GROUPS = (("q", "k", "v"), ("gate", "up"))
POWERS = (0.0, 0.1, 0.2, 0.3, 0.5)


def rounded(weights: Floats, fmt: Format, metric: Metric, feedback: bool) -> Floats:
    """Return weights [rows, columns] rounded, to the nearest codes or by error feedback."""
    if feedback:
        return formats.decode(round_weight(weights, fmt, metric, 1))
    found = grid(fmt, weights, np.ascontiguousarray(np.diagonal(metric.hessian)))
    scales, minima = (np.repeat(each, found.group, axis=1) for each in (found.scales, found.minima))
    best, least = np.zeros(weights.shape, np.uint8), np.full(weights.shape, np.inf, np.float32)
    for code, level in enumerate(found.levels):
        error = np.abs(scales * level - minima - weights)
        best[error < least] = code
        least = np.minimum(least, error)
    return found.values(best)


def expected(weights: Floats, of: Sensitivity, rows: Floats, fmt: Format, power: float, feedback: bool) -> float:
    """Return the KL that is expected of a matrix whose columns were scaled by a power of their inputs."""
    scale = np.maximum(np.sqrt(of.moments), 1e-6) ** power
    scale = (scale / np.exp(np.log(scale).mean())).astype(np.float32)
    metric = Metric(np.ascontiguousarray(of.metric / scale[:, None] / scale))
    change = rounded(np.ascontiguousarray(weights * scale), fmt, metric, feedback) / scale - weights
    return of.sampled(change, rows)


def main() -> None:
    """Print a row for each format and way to round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--formats", nargs="+", default=["q4_0", "q2_k"])
    parser.add_argument("--every", type=int, default=3, help="take every so many layers")
    options = parser.parse_args()
    target.configure()
    card = find_card(options.original, offline=True)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "norm-scales.txt")
        text.write_text(mixed("calibration", _CHARACTERS))
        statistics = Calibration(card, text, 1, lambda label, done, total: None).rounder.statistics
    by_role = {tensor.role: tensor for tensor in matrices(card)}
    sums = {(name, feedback): np.zeros(2) for name in options.formats for feedback in (False, True)}
    with Reader(card) as reader:
        for layer in range(0, len(card.decoder.layers), options.every):
            for group in GROUPS:
                known = []
                for kind in group:
                    of = statistics.of(f"layers.{layer}.{kind}")
                    rows = of.sample(_ROWS)
                    known.append((formats.decode(reader.read(by_role[f"layers.{layer}.{kind}"]))[rows], of, rows))
                for (name, feedback), total in sums.items():
                    tried = [
                        sum(expected(*each, formats.get(name), power, feedback) for each in known) for power in POWERS
                    ]
                    total += tried[0], min(tried)
            print(f"layer {layer}", flush=True)
    for (name, feedback), (plain, scaled) in sums.items():
        way = "error feedback" if feedback else "nearest codes"
        print(f"{name}, {way}: {plain:.5f} without scales, {scaled:.5f} with ({1 - scaled / plain:.1%} less)")


if __name__ == "__main__":
    main()
