"""A short prompt is answered without torch, and as it is answered with it."""

import subprocess
import sys
from pathlib import Path

import pytest

GGUF = Path(__file__).parent.parent / "fixtures" / "gguf"
PROGRAM = """
import sys
import rung
model = rung.load(sys.argv[1], context=64)
def answer():
    model._decoder.cache.truncate(0)
    pieces = model.generate("Hi", raw=True, max_tokens=6, temperature=0)
    return list(pieces) and pieces.result["tokens"]
alone = answer()
step = next(taken for work, taken in model.report.rungs.items() if work.startswith("decode_step"))
whole = step == "numba.step"
assert whole != ("torch" in sys.modules), sorted(model.report.rungs.items())
if not whole:
    print(step)
    sys.exit(0)
import torch
assert answer() == alone, alone
logits = model.logits([1, 5, 9])
assert logits.shape[0] == 3 and logits.isfinite().all()
"""
FIRST = """
import sys
from rung.engine.load import load
model = load(sys.argv[1], context=64, first_prompt="word " * int(sys.argv[2]))
step = next(taken for work, taken in model.report.rungs.items() if work.startswith("decode_step"))
print(step, "torch" in sys.modules)
"""


@pytest.mark.parametrize(("words", "there"), [(1, "False"), (300, "True")])
def test_torch_is_imported_beside_the_weights_for_a_long_first_prompt(words, there):
    command = [sys.executable, "-c", FIRST, str(GGUF / "llama-q4_0.gguf"), str(words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    step, imported = done.stdout.split()
    assert imported == (there if step == "numba.step" else "True")


@pytest.mark.parametrize("name", ["gemma2-q8_0", "llama-q4_0"])
def test_a_short_prompt_needs_no_torch(name):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(GGUF / f"{name}.gguf")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if done.stdout:
        pytest.skip(f"this processor computes tokens on {done.stdout.strip()}, which needs torch")
