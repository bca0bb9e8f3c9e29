"""The self-checks of all rungs that are compiled and need no torch, found in the ladders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rung import formats
from rung.core.types import Capability, Case, Device, Level, Proof, Rung
from rung.core.value import FrozenDict
from rung.ops import LADDERS, examples, proof
from rung.ops.decode_step import ROWS
from rung.run.cpu_level import KERNELS
from rung.run.self_check import class_of
from tests.emulation.checks import Check

#: A processor whose kernels are proved, without torch.
_CPU = Device(
    "cpu",
    "cpu",
    "a processor",
    "",
    2**34,
    capabilities=FrozenDict({KERNELS: Capability(KERNELS, Level.NATIVE, Proof.PROBE)}),
    software=FrozenDict({"numba": "0.60"}),
)
#: Options that cases of an op have beside or instead of its examples'; whole tokens multiply by all rungs in turn.
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "attention": ({}, {"window": 20, "softcap": 3.0}),
    "decode_step": ({"linears": ROWS, "head_dim": 64, "devices": 1},),
    "encoder": ({"activation": "gelu"}, {"activation": "gelu_tanh"}),
}
#: Options that names of checks show.
_SHOWN = ("window", "softcap", "activation")
#: Rungs whose products ``products`` compares, with rows of its own.
_ELSEWHERE = ("numba.row", "numba.tile")


def _cases(rung: Rung) -> Iterator[Case]:
    """Yield a case for each format, each class of shapes and each option."""
    for format in rung.formats:
        for _, case in examples(rung.op, formats.get(format).name if rung.packing == "r16" else format):
            for options in _OPTIONS.get(rung.op, ({},)):
                chosen = replace(case, options=FrozenDict({**case.options, **options}))
                if rung.verdict(chosen, _CPU):
                    yield chosen


def _check(rung: Rung, case: Case) -> str:
    return str(proof.perform(rung.to_json(), case.to_json())["reason"])


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    for ladder in LADDERS.values():
        for rung in ladder.rungs:
            if KERNELS not in rung.needs or not rung.without_torch or rung.name in _ELSEWHERE:
                continue
            for case in _cases(rung):
                options = ", ".join(f"{name} {value}" for name, value in case.options.items() if name in _SHOWN)
                name = f"rung {rung.op} {rung.name}, {class_of(case)}" + (f", {options}" if options else "")
                yield name, lambda rung=rung, case=case: _check(rung, case)  # type: ignore[misc]
