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
    model.backend.prefixes.clear()
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


#: An adapter beside every linear of the first layer, written as PEFT saves it.
WITH_ADAPTER = """
import json, sys, tempfile
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
import rung
from rung.models.open import open_card
from rung.models.roles import shape_of
decoder, tensors = open_card(sys.argv[1]).decoder, {}
for role, name in (("q", "self_attn.q_proj"), ("o", "self_attn.o_proj"), ("down", "mlp.down_proj")):
    rows, columns = shape_of(f"layers.0.{role}", decoder)
    prefix = f"base_model.model.model.layers.0.{name}"
    tensors[f"{prefix}.lora_A.weight"] = np.full((2, columns), 0.5, np.float16)
    tensors[f"{prefix}.lora_B.weight"] = np.full((rows, 2), 0.5, np.float16)
folder = Path(tempfile.mkdtemp())
save_file(tensors, folder / "adapter_model.safetensors")
config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
(folder / "adapter_config.json").write_text(json.dumps(config))
model = rung.load(sys.argv[1], context=128, adapters=[folder])
for prompt in ("Hi", "the quick brown fox " * 5):
    assert list(model.generate(prompt, raw=True, max_tokens=4, temperature=0)) is not None
(step,) = {taken for work, taken in model.report.rungs.items() if work.startswith("decode_step")}
if step == "numba.step":
    assert "torch" not in sys.modules
else:
    print(step)
"""


def test_an_adapter_needs_no_torch_for_any_prompt():
    other = run(WITH_ADAPTER, "llama-q4_0")
    if other:
        pytest.skip(f"this processor computes tokens on {other}, which needs torch")
