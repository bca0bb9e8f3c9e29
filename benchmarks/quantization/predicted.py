"""Compare the KL that is expected of a mixture of formats with what is measured of it, for 30 mixtures.

    python benchmarks/quantization/predicted.py ORIGINAL.gguf --kept FOLDER [--mixtures 30] [--tokens 1024]

A third of the mixtures are choices within sizes that are evenly spaced, a third have a random format for each kind of
tensors, and a third a random one for each tensor. KL is measured on files that the text of the choice holds nothing of.
The bars: each within 20 %, and the order right in 95 % of the pairs that differ by at least 5 %. FOLDER keeps rounded
tensors, which mixtures share, and what was measured: a run that is stopped goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from mixed_texts import mixed

from rung.conversion.within_budget import Calibration
from rung.core.files import written_whole
from rung.core.types import Format
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


class Kept:
    """Hold the KL that was measured of mixtures, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, formats: Mapping[str, Format], measure: Callable[[], float]) -> float:
        """Return the KL of a mixture, measured where it is not known."""
        key = hashlib.sha256(repr([(role, formats[role].name) for role in sorted(formats)]).encode()).hexdigest()
        if key not in self._known:
            self._known[key] = measure()
            with written_whole(self._path) as part:
                part.write_text(json.dumps(self._known))
        return self._known[key]


def main() -> None:
    """Print a row for each mixture, then the two bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--kept", type=Path, required=True, help="folder of rounded tensors and of what was measured")
    parser.add_argument("--mixtures", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", nargs="+", help="only these formats, for fewer roundings")
    arguments = parser.parse_args()
    target.configure()
    card = find_card(arguments.original, offline=True)
    arguments.kept.mkdir(parents=True, exist_ok=True)
    text = arguments.kept / "text.txt"
    text.write_text(mixed("calibration", _CHARACTERS))
    found = Calibration(card, text, arguments.threads, lambda label, done, total: None)
    options = {
        role: tuple(one for one in each if arguments.formats is None or one.format.name in arguments.formats) or each
        for role, each in found.options.items()
    }
    tensors = arguments.kept / found.rounder.digest
    tensors.mkdir(exist_ok=True)
    other = windows(Tokenizer.from_card(card), mixed("held-out", 5 * arguments.tokens), 512, arguments.tokens)
    measured = measure(
        mixtures(options, arguments.mixtures, 0), found, Reference(card, other), tensors, arguments.tokens
    )
    print_bars(measured)


def measure(
    tried: list[dict[str, Option]], found: Calibration, reference: Reference, tensors: Path, tokens: int
) -> list[tuple[float, float]]:
    """Print and return the expected and the measured KL of each mixture; rounded tensors are kept in a folder."""
    card, kept, pairs = found.card, Kept(tensors / f"measured-{tokens}.json"), []
    for number, mixture in enumerate(tried):
        chosen, began = {role: option.format for role, option in mixture.items()}, time.monotonic()
        expected = sum(option.divergence for option in mixture.values())
        override = rounded(card, found.rounder, chosen, tensors)
        kl = kept.of(chosen, lambda override=override: reference.compare(card, override).divergence)
        pairs.append((expected, kl))
        size = sum(option.bytes for option in mixture.values()) / 2**20
        kind = ("choice", "by kind", "by tensor")[number % 3]
        words = f"{number + 1:2d} {kind:9s} {size:4.0f} MB: expected {expected:.5f}, measured {kl:.5f}"
        print(f"{words}, ratio {expected / kl:.2f} ({time.monotonic() - began:.0f} s)", flush=True)
    return pairs


def print_bars(pairs: list[tuple[float, float]]) -> None:
    """Print the two bars for pairs of an expected and a measured KL."""
    near = sum(abs(e / m - 1) <= _NEAR for e, m in pairs)
    right, count = pairs_right([e for e, _ in pairs], [m for _, m in pairs])
    print(f"within {_NEAR:.0%}: {near} of {len(pairs)} (bar: all)")
    print(f"order right in {right} of {count} pairs that differ by 5 % or more: {right / max(count, 1):.1%} (bar 95 %)")


if __name__ == "__main__":
    main()
