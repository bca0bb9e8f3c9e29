"""Measure KL at equal bytes: ``rung quantize --size`` beside ``llama-quantize`` with its own imatrix of the same text.

    python benchmarks/quantization/equal_bytes.py ORIGINAL.gguf --llama-cpp BUILD/bin --results FILE.json [--judge]

ORIGINAL is a GGUF file in f32 or bf16 (``originals.py``). Both programs see the same text; the KL of both files is
measured on text of the same kinds that neither saw, in exact arithmetic on the decoded weights, and with ``--judge`` by
llama-perplexity too, which quantizes activations: what blocks of 32 and of 256 of them cost alone is printed. A cell
says how many matrices are no K-quants because blocks of 256 do not divide their rows. With ``--named`` rung writes the
same named formats, ``rung quantize --format NAME --text``, so that little more than rounding differs; its file may be
smaller.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from mixed_texts import mixed

from rung.conversion.within_budget import Budget, Calibration, budgeted
from rung.conversion.writing import write
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.kernels.cpu import target
from rung.models.lookup import find_card
from rung.quantization.divergence import Reference
from rung.quantization.network import Arithmetic
from rung.quantization.text import windows

NAMES = ("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_M", "IQ4_XS")
#: Characters of the text that both see, and tokens of the other one.
_CHARACTERS, _TOKENS = 30_000, 2048


def call(program: Path, *arguments: Any) -> str:
    """Run a program of llama.cpp and return what it said. Raises ``SystemExit`` where it fails."""
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{program.name} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    return done.stdout + done.stderr


class Judge:
    """llama-perplexity with the logits of the original."""

    def __init__(self, build: Path, original: str, text: Path, folder: Path, threads: int, chunks: int) -> None:
        self.program, self.base = build / "llama-perplexity", folder / "base.kld"
        self.options = ("-f", text, "-c", 512, "--chunks", chunks, "-t", threads, "--kl-divergence-base", self.base)
        call(self.program, "-m", original, *self.options)

    def kl(self, file: Path) -> float:
        """Return the mean KL of a file."""
        said = call(self.program, "-m", file, *self.options, "--kl-divergence")
        found = re.search(r"Mean\s+KLD:\s*([0-9.eE+-]+)", said)
        if found is None:
            raise SystemExit(f"llama-perplexity says no KL:\n{said[-800:]}")
        return float(found[1])


def main() -> None:
    """Print a row for each mixture, then the largest and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--results", type=Path, required=True, help="JSON; cells that it has are not measured again")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--named", action="store_true", help="the formats of the name instead of a choice")
    parser.add_argument("--tokens", type=int, default=_TOKENS, help="tokens that KL is measured on")
    parser.add_argument("--chunks", type=int, default=-1, help="windows of 512 that llama-perplexity judges; -1: all")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    target.configure()
    card = find_card(options.original, offline=True)
    with tempfile.TemporaryDirectory(dir=Path(options.original).parent) as temporary:
        folder = Path(temporary)
        text, other = folder / "text.txt", folder / "other.txt"
        text.write_text(mixed("calibration", _CHARACTERS))
        other.write_text(mixed("held-out", _CHARACTERS))
        began = time.monotonic()
        found = Calibration(card, text, options.threads, lambda label, done, total: None)
        print(f"statistics of rung: {time.monotonic() - began:.0f} s", flush=True)
        importance = folder / "imatrix.gguf"
        call(
            options.llama_cpp / "llama-imatrix",
            "-m",
            options.original,
            "-f",
            text,
            "-o",
            importance,
            "-c",
            512,
            "-t",
            options.threads,
        )
        reference = Reference(card, windows(Tokenizer.from_card(card), other.read_text(), 512, options.tokens))
        if options.judge:
            for count in (32, 256):
                kl = reference.computed(Arithmetic(inputs=f"int8:{count}")).divergence
                print(f"inputs of all weights in blocks of {count}, weights as they are: KL {kl:.5f}", flush=True)
        judge = None
        if options.judge:
            judge = Judge(options.llama_cpp, options.original, other, folder, options.threads, options.chunks)
        known = json.loads(options.results.read_text()) if options.results.exists() else {}
        for name in options.names:
            if name not in known:
                known[name] = cell(name, options, folder, importance, found, reference, judge)
                options.results.write_text(json.dumps(known))
        cells = [known[name] for name in options.names]
    ratios = [ours / theirs for _, theirs, ours in cells]
    print(f"largest ratio {max(ratios):.2f} (bar 0.70), median {median(ratios):.2f} (bar 0.55)")
    if not options.named:
        print_fewer(options.names, cells)


def print_fewer(names: Sequence[str], cells: Sequence[tuple[int, float, float]]) -> None:
    """Print by how much smaller rung's files are at the KL of llama-quantize's: between rung's own files of the other
    sizes, whose logarithm of KL is taken for straight. Where these end it says so."""
    points = sorted((math.log(ours), size) for size, _, ours in cells)
    logarithms, sizes = zip(*points, strict=True)
    parts = []
    for name, (size, theirs, _) in zip(names, cells, strict=True):
        inside = math.log(theirs) <= logarithms[-1]
        parts.append(1 - float(np.interp(math.log(theirs), logarithms, sizes)) / size)
        print(f"{name}: {parts[-1]:.1%} fewer bytes at its KL" + ("" if inside else ", or more"))
    print(f"median {median(parts):.1%} fewer (bar 10 %)")


def cell(
    name: str,
    options: Any,
    folder: Path,
    importance: Path,
    found: Calibration,
    reference: Reference,
    judge: Judge | None,
) -> tuple[int, float, float]:
    """Print one row and return the bytes and both KL."""
    theirs, ours = folder / f"{name}-llama.gguf", folder / f"{name}-rung.gguf"
    call(options.llama_cpp / "llama-quantize", "--imatrix", importance, options.original, theirs, name, options.threads)
    budget = Budget(format=name.lower()) if options.named else Budget(size=theirs.stat().st_size)
    job, choice = budgeted(found, budget, {})
    write(job, ours, options.threads)
    cards = [find_card(str(file), offline=True) for file in (theirs, ours)]
    kl = [reference.compare(card).divergence for card in cards]
    plain = sum(len(each.shape) > 1 and not each.format.endswith("_k") for each in cards[0].tensors)
    matrices = sum(len(each.shape) > 1 for each in cards[0].tensors)
    words = f"{name}: {theirs.stat().st_size:,} and {ours.stat().st_size:,} bytes, KL {kl[0]:.5f} and {kl[1]:.5f}"
    expected = "" if choice is None else f" (expected {choice.divergence:.5f})"
    judged = "" if judge is None else f", by llama-perplexity {judge.kl(theirs):.5f} and {judge.kl(ours):.5f}"
    print(f"{words}{expected}, ratio {kl[1] / kl[0]:.2f}{judged}; {plain} of {matrices} no K-quants", flush=True)
    for file in (theirs, ours):
        file.unlink()
    return job.file_bytes, kl[0], kl[1]


if __name__ == "__main__":
    main()
