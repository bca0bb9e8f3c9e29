"""Compare the KL that is expected of a mixture of formats with what is measured of it, for 30 mixtures.

    python benchmarks/quantization/predicted.py ORIGINAL.gguf [--mixtures 30] [--tokens 1024] [--formats q4_0 q4_1 q5_0]

A third of the mixtures are choices within sizes that are evenly spaced, a third have a random format for each kind of
tensors, and a third a random one for each tensor. KL is measured on files that the text of the choice holds nothing of.
The bars: each within 20 %, and the order right in 95 % of the pairs that differ by at least 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mixed_texts import mixed

from rung.conversion.within_budget import Calibration
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.kernels.cpu import target
from rung.models.lookup import find_card
from rung.quantization.budget import Option, choose, kind_of, rounded
from rung.quantization.divergence import Reference
from rung.quantization.text import windows

#: Characters of the text that the choice is made by.
_CHARACTERS = 30_000
_NEAR, _PAIRS, _DIFFER = 0.20, 0.95, 1.05
Options = Mapping[str, tuple[Option, ...]]


def mixtures(options: Options, count: int, seed: int) -> list[dict[str, Option]]:
    """Return so many mixtures: an option for each role."""
    rng = np.random.default_rng(seed)
    smallest, largest = (sum(pick(one.bytes for one in each) for each in options.values()) for pick in (min, max))
    found = []
    for number in range(count):
        if number % 3 == 0:
            part = (number // 3 + 0.5) / math.ceil(count / 3)
            chosen = choose(options, round(smallest + part * (largest - smallest)), None).formats
            found.append({role: _of(options, role, fmt.name) for role, fmt in chosen.items()})
            continue
        draws = {(role if number % 3 == 2 else kind_of(role)): rng.random() for role in options}
        found.append(
            {
                role: each[int(draws[role if number % 3 == 2 else kind_of(role)] * len(each))]
                for role, each in options.items()
            }
        )
    return found


def _of(options: Options, role: str, name: str) -> Option:
    return next(each for each in options[role] if each.format.name == name)


def pairs_right(expected: list[float], measured: list[float]) -> tuple[int, int]:
    """Return how many pairs are in the right order, and how many differ enough to count."""
    right = pairs = 0
    for (e, m), (f, n) in itertools.combinations(zip(expected, measured, strict=True), 2):
        if max(m, n) >= _DIFFER * min(m, n):
            pairs += 1
            right += (e < f) == (m < n)
    return right, pairs


def main() -> None:
    """Print a row for each mixture, then the two bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--mixtures", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--formats", nargs="+", help="only these formats, for fewer roundings")
    given = parser.parse_args()
    target.configure(2)
    card = find_card(given.original, offline=True)
    with tempfile.TemporaryDirectory(dir=Path(given.original).parent) as place:
        text = Path(place, "text.txt")
        text.write_text(mixed("calibration", _CHARACTERS))
        found = Calibration(card, text, 2, lambda label, done, total: None)
        options = {
            role: tuple(one for one in each if given.formats is None or one.format.name in given.formats) or each
            for role, each in found.options.items()
        }
        other = windows(Tokenizer.from_card(card), mixed("held-out", 5 * given.tokens), 512, given.tokens)
        reference = Reference(card, other)
        expected, measured = [], []
        for number, mixture in enumerate(mixtures(options, given.mixtures, 0)):
            chosen = {role: option.format for role, option in mixture.items()}
            expected.append(sum(option.divergence for option in mixture.values()))
            measured.append(reference.compare(card, rounded(card, found.rounder, chosen, Path(place))).divergence)
            size = sum(option.bytes for option in mixture.values()) / 2**20
            kind = ("choice", "by kind", "by tensor")[number % 3]
            words = (
                f"{number + 1:2d} {kind:9s} {size:4.0f} MB: expected {expected[-1]:.5f}, measured {measured[-1]:.5f}"
            )
            print(f"{words}, ratio {expected[-1] / measured[-1]:.2f}", flush=True)
    near = sum(abs(e / m - 1) <= _NEAR for e, m in zip(expected, measured, strict=True))
    right, pairs = pairs_right(expected, measured)
    print(f"within {_NEAR:.0%}: {near} of {len(measured)} (bar: all)")
    print(f"order right in {right} of {pairs} pairs that differ by 5 % or more: {right / max(pairs, 1):.1%} (bar 95 %)")


if __name__ == "__main__":
    main()
