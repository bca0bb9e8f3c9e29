"""Prompts that need no torch are answered without it, and as they are answered with it."""

import subprocess
import sys
from pathlib import Path

import pytest

GGUF = Path(__file__).parent.parent / "fixtures" / "gguf"
PROGRAM = """
import sys
import rung
from rung.engine.load import load
models = [rung.load(sys.argv[1], context=64), load(sys.argv[2], context=64, first_prompt="Hi")]
def answer(model):
    model._decoder.cache.truncate(0)
    pieces = model.generate("Hi", raw=True, max_tokens=6, temperature=0)
    return list(pieces) and pieces.result["tokens"]
alone = [answer(model) for model in models]
steps = {taken for model in models for work, taken in model.report.rungs.items() if work.startswith("decode_step")}
whole = steps == {"numba.step"}
assert whole != ("torch" in sys.modules), steps
if not whole:
    print(*steps)
    sys.exit(0)
import torch
assert [answer(model) for model in models] == alone, alone
for model in models:
    logits = model.logits([1, 5, 9])
    assert logits.shape[0] == 3 and logits.isfinite().all()
"""
FIRST = """
import sys
from rung.engine.load import load
load(sys.argv[1], context=64, first_prompt="word " * 300)
assert "torch" in sys.modules
"""


def run(program, *names):
    command = [sys.executable, "-c", program, *(str(GGUF / f"{name}.gguf") for name in names)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torch_is_imported_beside_the_weights_for_a_long_first_prompt_of_floats():
    run(FIRST, "llama-f16")


def test_a_short_prompt_needs_no_torch():
    other = run(PROGRAM, "gemma2-q8_0", "llama-q4_0")
    if other:
        pytest.skip(f"this processor computes tokens on {other}, which needs torch")
