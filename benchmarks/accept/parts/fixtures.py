"""Small GGUF files of every type and architecture, as a prompt and token by token, against transformers in f32."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.accept.check import ROOT, Check, Target

import rung

sys.path.insert(0, str(ROOT / "tests" / "fixtures"))
import references

ORDER, SECONDS = 4, 480
_SMALL = ("llama-q4_0", "llama-q8_0", "gemma2-q4_k_m")


def run(target: Target) -> Iterator[Check]:
    """Compare logits on the device; the bars are those of ``benchmarks/accuracy.py``."""
    for fixture in references.fixtures():
        if target.small and fixture.name not in _SMALL:
            continue
        ids, expected = fixture.reference()
        model = rung.load(str(fixture.path), device=target.name, context=fixture.context)
        prompt = references.agreement(expected, model.logits(ids.tolist()).numpy())
        tokens = references.agreement(expected, references.token_by_token(model, ids))
        divergence = max(prompt.divergence, tokens.divergence)
        same = min(prompt.same_choice, tokens.same_choice)
        report = model.report
        facts = {
            "kl_prompt": prompt.divergence,
            "kl_by_token": tokens.divergence,
            "bar": fixture.bar,
            "same_choice": same,
            "rungs": dict(report.rungs),
            "steps": [step.to_json() for step in report.steps],
        }
        holds = divergence < fixture.bar and same >= references.SAME_CHOICE and not report.steps
        yield Check(fixture.name, holds, facts)
