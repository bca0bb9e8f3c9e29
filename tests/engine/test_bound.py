"""Parts of a decoder are read and packed beside the import of torch, by a thread that ends with them."""

from __future__ import annotations

import _thread
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interrupting import ended

import rung
from rung.core.errors import BadFile
from rung.engine.load import load
from rung.models.reader import Reader
from rung.planning.memory import RUNTIME_CPU

MODEL = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf"
WITHOUT_TORCH = """
import sys
from rung.engine.weight_loader import WeightLoader
from rung.models.lookup import find_card
from rung.engine.planning import make_plan
from rung.models.reader import Reader
from rung.run.journal import Journal
card = find_card(sys.argv[1])
plan, devices = make_plan(card)
seen = []
with Reader(card) as reader, WeightLoader(card, plan, devices, reader, Journal(), lambda *at: seen.append(at)) as parts:
    parts.look_up()
    packings = {parts.linear(t.role).rungs[0].packing for t in card.tensors if len(t.shape) > 1 and t.role != "embed"}
assert packings != {"r16"} or "torch" not in sys.modules
assert seen[-1][0] == seen[-1][1] > 0
print(*packings)
"""


def test_weights_are_packed_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(MODEL)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() != "r16":
        pytest.skip(f"this processor holds weights as {done.stdout.strip()}, which needs torch")


LONG_PROMPT_WITHOUT_TORCH = """
import sys
import rung
model = rung.load(sys.argv[1], device="cpu")
list(model.generate("the model runs on a device " * 8, raw=True, max_tokens=4))
lean = not {step for step in model.report.rungs if step.startswith("decode_step")}.isdisjoint(
    step for step, name in model.report.rungs.items() if name == "numba.step")
memory, report = model.plan.placements[0].memory, model.report
print(lean, "torch" in sys.modules, memory.runtime, memory.most)
print(report.predicted["memory_bytes"], report.measured["memory_bytes"])
"""


@pytest.mark.parametrize("model", [str(MODEL), "demo"])
def test_long_prompts_are_read_without_torch_in_the_memory_that_the_plan_names(model):
    """A small budget depends on it: torch takes 200 MB more, which were counted once whether it was loaded or not."""
    done = subprocess.run([sys.executable, "-c", LONG_PROMPT_WITHOUT_TORCH, model], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lean, torch, *sizes = done.stdout.split()
    runtime, most, predicted, measured = map(float, sizes)
    if lean != "True":
        pytest.skip("this processor has no kernel for whole tokens")
    assert torch == "False"
    assert measured <= most
    assert abs(predicted - measured) <= max(0.1 * measured, 30e6)
    assert runtime < RUNTIME_CPU


def test_weights_stored_as_floats_need_torch_and_the_plan_counts_it():
    plan = rung.plan(MODEL.with_name("llama-f16.gguf"), device="cpu")
    assert plan.placements[0].memory.runtime >= RUNTIME_CPU


def test_what_fails_while_reading_is_raised_and_the_thread_ends(monkeypatch):
    plain = Reader.read

    def read(self, tensor):
        if tensor.role.endswith(".up"):
            raise BadFile("the file has become shorter")
        return plain(self, tensor)

    monkeypatch.setattr(Reader, "read", read)
    before = _thread._count()
    with pytest.raises(BadFile, match="has become shorter"):
        load(str(MODEL))
    assert ended(before)
