"""The core values: JSON both ways, verdicts, rungs and climbing."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from rung.core.errors import RegistrationError, RungError
from rung.core.registry import Registry, register_ladder
from rung.core.types import (
    YES,
    Capability,
    Case,
    Device,
    FrozenDict,
    Ladder,
    Level,
    Proof,
    Report,
    Rung,
    StepClass,
    StepDown,
    Verdict,
    no,
)

NATIVE = Capability("isa.avx512_vnni", Level.NATIVE, Proof.PROBE, "vpdpbusd compared by value")
CPU = Device(
    "cpu",
    "cpu",
    "a processor",
    "x86_64",
    2**34,
    peaks=FrozenDict({"f32": 1e11}),
    capabilities=FrozenDict({NATIVE.name: NATIVE}),
    software=FrozenDict({"torch": "2.13.0"}),
)
CASE = Case("linear", "q4_0", "f32", (1, 64, 64), FrozenDict({"bias": False}))


def fast(device_case_needs=("isa.avx512_vnni",), **changes):
    return Rung("linear", "numba.row", "nowhere:row", ("cpu",), device_case_needs, ("q4_0", "nf4"), ("f32",), **changes)


REF = Rung("linear", "ref", "nowhere:ref")


@pytest.mark.parametrize("value", [CPU, CASE, fast(), Ladder("linear", (fast(), REF)), NATIVE, no("because"), Report()])
def test_json_both_ways(value):
    text = json.dumps(value.to_json())
    assert type(value).from_json(json.loads(text)) == value
    assert hash(type(value).from_json(json.loads(text))) == hash(value)


def test_report_keeps_its_steps():
    step = StepDown("linear", "numba.row", "cpu", StepClass.BROKEN, "row 3 differs", "ref")
    assert Report.from_json(Report((step,)).to_json()).steps == (step,)


def test_json_names_what_is_unknown_and_missing():
    with pytest.raises(ValueError, match=r"unknown keys \['extra'\], missing keys \['ok'\]"):
        Verdict.from_json({"extra": 1})


def test_a_no_needs_a_reason():
    with pytest.raises(AssertionError):
        Verdict(False)


@pytest.mark.parametrize(
    ("rung", "case", "device", "reason", "step"),
    [
        (Rung("linear", "x", "m:f", ("cuda",)), CASE, CPU, "runs on cuda, not on cpu", StepClass.UNSUPPORTED),
        (
            fast(("package.numba",)),
            CASE,
            CPU,
            "numba is not installed: pip install 'rung[lean]'",
            StepClass.UNAVAILABLE,
        ),
        (fast(("isa.amx",)), CASE, CPU, "nobody knows whether a processor has isa.amx", StepClass.UNSUPPORTED),
        (fast(), Case("linear", "q3_k", "f32", (1, 1, 1)), CPU, "has no kernel for q3_k", StepClass.UNSUPPORTED),
        (fast(), Case("linear", "q4_0", "f16", (1, 1, 1)), CPU, "does not compute in f16", StepClass.UNSUPPORTED),
    ],
)
def test_every_refusal_has_its_reason(rung, case, device, reason, step):
    verdict = rung.verdict(case, device)
    assert not verdict
    assert reason in verdict.reason
    assert verdict.step is step


def test_an_absent_capability_refuses_with_its_source():
    device = CPU.with_capabilities([Capability("isa.amx", Level.ABSENT, Proof.PROBE, "illegal instruction")])
    verdict = fast(("isa.amx",)).verdict(CASE, device)
    assert verdict.reason == "a processor has no isa.amx (illegal instruction)"


def test_format_parameters_do_not_hide_the_format():
    assert fast().verdict(Case("linear", "nf4:128:nested", "f32", (1, 64, 64)), CPU) == YES


def test_climbing_returns_the_highest_rung_and_the_trail():
    ladder = Ladder("linear", (fast(), REF))
    assert ladder.climb(CPU, CASE).rung == fast()
    climb = ladder.climb(
        CPU, CASE, lambda rung: no("row 3 differs", StepClass.BROKEN) if rung.name == "numba.row" else YES
    )
    assert climb.rung == REF
    assert [(r.rung, r.step, r.reason) for r in climb.refusals] == [("numba.row", StepClass.BROKEN, "row 3 differs")]


def test_registering_twice_is_an_error():
    registry: Registry[int] = Registry("thing")
    registry.register("a", 1)
    with pytest.raises(RegistrationError, match="thing 'a' is registered twice"):
        registry.register("a", 2)


@pytest.mark.parametrize(
    ("ladder", "reason"),
    [
        (Ladder("linear", (REF, REF)), "has a rung twice"),
        (Ladder("attention", (REF,)), "has rungs of other ops"),
        (Ladder("linear", (fast(),)), "The last rung of linear must be ref"),
    ],
)
def test_a_wrong_ladder_is_an_error(ladder, reason):
    with pytest.raises(RegistrationError, match=reason):
        register_ladder(ladder)


def test_an_error_carries_cause_facts_and_ways_out():
    error = RungError("It broke.", ["a fact"], ["rung devices"])
    assert str(error) == "It broke.\n  a fact\nWhat to do\n  1  rung devices"


def test_a_value_that_was_hashed_is_found_in_another_process():
    """Strings have other hashes there."""
    assert {CASE: 1}[CASE] == 1
    code = (
        "import pickle, sys; from rung.core.types import Case; case = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "assert case in {Case.from_json(case.to_json())}"
    )
    for seed in ("1", "2"):
        variables = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, pickle.dumps(CASE).hex()], env=variables, check=True)
