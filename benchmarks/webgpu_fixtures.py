"""Activations as bytes on a GPU (``webgpu.int8``) beside the processor's, a row for each GGUF fixture and each model.

    python benchmarks/webgpu_fixtures.py [MODEL ...] [--only NAME ...] [--device webgpu:0] [--tokens 24]

For each: the Kullback-Leibler divergence in nats of the GPU's logits, as a prompt and token by token, and of the
processor's, from those of transformers on the decoded file (of a MODEL from ``webgpu.f32``, which is as near to
transformers as its recorded logits); how many greedy tokens are the processor's. Where they part, the gap of the two
logits without rounded activations, beside the deviation of the error that each rung has in a gap of two logits there.
Of whichever rung left the choice that unrounded activations make, 3 deviations have to reach over the gap: it was a
coin toss for that rung. Else it is a defect.

The bars: a divergence of at most the larger of 1e-3 and the processor's; no defect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import rung
from rung.core.types import Case, Device, Verdict, no
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.formats.codec import Floats
from rung.ops import decode_step

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fixtures"))
import references

PROSE = Path(__file__).resolve().parent.parent / "tests" / "data" / "prose.txt"
#: Tokens of a model's text, of it before the greedy ones, and deviations of an error that a coin toss may have.
TEXT, START, TOSS = 160, 12, 3.0


@dataclass(frozen=True)
class Parting:
    """Where greedy tokens part: after how many, how far the GPU's choice is below the likeliest without rounded
    activations, how far the processor's is, and the deviation that the error of each has in a gap of two logits."""

    after: int
    gaps: tuple[float, float]
    errors: tuple[float, float]

    @property
    def toss(self) -> bool:
        """Return whether the error of each rung reaches from its choice to the likeliest."""
        return all(gap <= TOSS * error for gap, error in zip(self.gaps, self.errors, strict=True))


def load(path: str, device: str, context: int | None, integers: bool) -> Any:
    """Load a model with, or without, activations as bytes on a device of WebGPU."""

    def check(case: Case, where: Device) -> Verdict:
        return decode_step.check_webgpu(case, where) if integers else no("float32 is compared")

    with mock.patch.object(decode_step, "check_webgpu_int8", check):
        model = rung.load(path, device=device, context=context, cache_type="f32")
    name = model.report.rungs["decode_step f32"]
    if device != "cpu" and name != ("webgpu.int8" if integers else "webgpu.f32"):
        raise SystemExit(f"{path} was computed by {name}: {model.report.steps}")
    return model


def greedy(model: Any, ids: Sequence[int], count: int) -> list[int]:
    """Return the likeliest tokens, one after the other."""
    found: list[int] = []
    with SequenceReader(model.backend) as reader:
        for token in ids:
            logits = reader.step(int(token))
        for _ in range(count):
            found.append(int(np.argmax(logits)))
            logits = reader.step(found[-1])
    return found


def last(model: Any, ids: Sequence[int]) -> Floats:
    """Return the logits [vocabulary] behind tokens that come one after the other."""
    return references.token_by_token(model, np.asarray(ids))[-1]  # type: ignore[no-any-return]


def parting(here: Any, exact: Any, processor: Any, ids: list[int], tokens: list[int], right: list[int]) -> Parting:
    """Return how the choice came about at which two answers part."""
    after = next(i for i, pair in enumerate(zip(tokens, right, strict=True)) if pair[0] != pair[1])
    behind = [*ids, *right[:after]]
    found, plain, other = (last(each, behind) for each in (here, exact, processor))
    gaps = (float(plain.max() - plain[tokens[after]]), float(plain.max() - plain[right[after]]))
    errors = (float(np.sqrt(2) * (found - plain).std()), float(np.sqrt(2) * (other - plain).std()))
    return Parting(after, gaps, errors)


def compare(name: str, path: str, device: str, options: argparse.Namespace, fixture: Any = None) -> bool:
    """Print the row of a model; return whether it keeps the bars."""
    context = fixture.context if fixture else 256
    here, exact = (load(path, device, context, integers) for integers in (True, False))
    processor = load(path, "cpu", context, True)
    if fixture:
        tokens, right = fixture.reference()
        ids = tokens.tolist()
    else:
        ids = here.tokenizer.encode(PROSE.read_text(encoding="utf-8"))[:TEXT]
        right = np.asarray(exact.logits(ids))
    own = references.agreement(right, np.asarray(processor.logits(ids))).divergence
    whole = references.agreement(right, np.asarray(here.logits(ids)))
    steps = references.agreement(right, references.token_by_token(here, np.asarray(ids)))
    start = ids[:START]
    answers = [greedy(each, start, min(options.tokens, context - len(start))) for each in (here, processor)]
    said, good = f"all {len(answers[0])}", max(whole.divergence, steps.divergence) <= max(1e-3, own)
    if answers[0] != answers[1]:
        found = parting(here, exact, processor, start, *answers)
        (gap, other), (error, processors) = found.gaps, found.errors
        said = f"{found.after}; gap {gap:.1e}, error {error:.1e}; CPU's {other:.1e}, {processors:.1e}: "
        said += "a coin toss" if found.toss else "A DEFECT"
        good = good and found.toss
    line = f"{name:24} {whole.divergence:.1e} {steps.divergence:.1e} {own:.1e} {whole.same_choice:5.2f}  {said}"
    print(line if good else f"{line}  BAR MISSED", flush=True)
    return good


def main() -> None:
    """Compare all fixtures and the models that are named; the exit code is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="files in GGUF")
    parser.add_argument("--only", nargs="*", help="these fixtures alone; none without names")
    parser.add_argument("--device", default="webgpu:0")
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    print(f"{'':24} {'prompt':>7} {'tokens':>7} {'CPU':>7}  same  greedy tokens as the processor's")
    chosen = [each for each in references.fixtures() if options.only is None or each.name in options.only]
    good = [compare(each.name, str(each.path), options.device, options, each) for each in chosen]
    good += [compare(Path(path).name, path, options.device, options) for path in options.models]
    print(f"{sum(good)} of {len(good)} keep the bars")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
