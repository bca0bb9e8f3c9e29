"""Test self-checks of rungs: right ones pass in every format, and small faults of whole results do not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rung.core.types import Case, resolve
from rung.ops import LADDERS, examples, proof


class Faulty:
    """An implementation that changes what another one computes."""

    def __init__(self, impl, change):
        self._right, self._change = resolve(impl), change

    def __getattr__(self, name):
        found = getattr(self._right, name)
        if name not in ("apply", "multiply"):
            return found

        def compute(*arguments, **options):
            values = found(*arguments, **options).copy()
            self._change(values)
            return values

        return compute


def reason(monkeypatch, op, name, case, change):
    rung = LADDERS[op].rung(name)
    monkeypatch.setattr(f"{__name__}.PLANTED", Faulty(rung.impl, change), raising=False)
    planted = replace(rung, impl=f"{__name__}:PLANTED")
    return proof.perform(planted.to_json(), case.to_json())["reason"]


@pytest.mark.parametrize("format", ["q2_k", "iq4_xs", "iq1_s", "tq2_0", "e4m3:128", "q8_0"])
@pytest.mark.parametrize("rows", [1, 256])
def test_products_in_f16_pass_in_every_format(format, rows):
    case = Case("linear", format, "f16", (rows, 4096, 4096))
    rung = LADDERS["linear"].rung("torch.decode")
    assert proof.perform(rung.to_json(), case.to_json()) == {"ok": True, "reason": ""}


def test_a_token_whose_logits_are_all_too_large_is_found(monkeypatch):
    (_, case), *_ = examples("decode_step", "f32")
    assert not reason(monkeypatch, "decode_step", "ref", case, lambda logits: None)

    def scale(logits):
        logits *= 1.02

    assert "times what they should be" in reason(monkeypatch, "decode_step", "ref", case, scale)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_fault_in_the_code_for_one_number_of_rows_is_found(monkeypatch, rows):
    case = Case("linear", "q8_0", "f32", (1, 4096, 4096))

    def change(values):
        if len(values) == rows:
            values[-1, -1] += 10 * np.abs(values).max()

    assert reason(monkeypatch, "linear", "numpy.decode", case, change).startswith(f"{rows} rows:")


COMPILED = """
import json
from rung.kernels.cpu.compiled import Kernel
from rung.ops import LADDERS, examples, proof

found, make = [], Kernel.compile
Kernel.compile = lambda self: (found.append(self.name), make(self))[1]
(_, case), *_ = examples("decode_step", "f16")
arguments = [LADDERS["decode_step"].rung("numba.step").to_json(), case.to_json()]
assert proof.perform(*arguments)["ok"]
whole, found[:] = list(found), []
proof.compile_ahead(*arguments)
print(json.dumps([whole, found]))
"""


def test_the_check_of_whole_tokens_takes_what_is_compiled_ahead():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True)
    whole, ahead = json.loads(done.stdout)
    assert ahead
    assert set(ahead) <= set(whole[whole.index("rung.kernels.cpu.decode.step:linear") :]), "not what comes last"
