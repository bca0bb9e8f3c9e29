"""A level of CPU instructions on which kernels are wrong, or end the process, is left for a lower one."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rung as package
from rung.kernels.cpu import target

SOURCE = Path(package.__file__).parent
LEVELS = [level.name for level in target.levels()]

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or len(LEVELS) < 3, reason="takes a processor with three levels"
)

#: Verdicts by level in place of a child: ``right`` names the levels at which a rung computes what it should.
FAKED = """
import json, sys
from rung.core.settings import CPU_LEVEL
from rung.core.types import Case, Rung
from rung.hardware import detect
from rung.kernels.cpu import target
from rung.run import self_check, worker
from rung.run.worker import Outcome

right, how = json.loads(sys.argv[1]), sys.argv[2]
device = detect.devices(cached=False)[0]
started = []

def run(jobs, timeout, *, environment={}, **others):
    level = {**target.shared(), **environment}.get(CPU_LEVEL.variable) or target.level().name
    started.append([level, len(jobs)])
    made = []
    for job in jobs:
        name = job.arguments["rung"]["name"]
        good = level in right[name]
        answer = {"ok": good, "reason": "" if good else "value (0, 0) is 1 instead of 2"}
        made.append(Outcome("returned", answer) if good or how == "wrong" else Outcome(how, error="no answer"))
    return made

worker.run = run
cases = [
    (Rung("linear", name, "nowhere:X", needs=("isa.kernels",)), Case("linear", "q4_0", "f32", (1, 64, 64)))
    for name in right
]
steps = []
found = self_check.prove(device, cases, step=lambda step: steps.append([step.rung, step.to, step.reason, step.step]))
print(json.dumps({
    "level": target.level().name, "right": {rung.name: bool(verdict) for (rung, _), verdict in found.items()},
    "steps": steps, "started": started, "child": target.shared().get(CPU_LEVEL.variable, ""),
}))
"""

#: A real product, and the level at which it was made.
PRODUCT = """
import json
import numpy as np, torch
from rung import formats
from rung.core.types import Capability, Level, Proof
from rung.hardware import detect
from rung.kernels.cpu import target
from rung.run.binding import Binder
from rung.run.journal import Journal

steps = []
proved = Capability("isa.kernels", Level.NATIVE, Proof.PROBE, "", target.level().name)
device = detect.devices(cached=False)[0].with_capabilities([proved])
binder = Binder(device, Journal(steps.append), threads=1)
weight = formats.encode(np.random.default_rng(3).standard_normal((48, 256), dtype=np.float32), formats.get("q4_0"))
linear = binder.linear(weight)
x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
want = x @ torch.from_numpy(formats.decode(weight)).T
print(json.dumps({
    "level": target.level().name, "rung": linear.rungs[0].name, "steps": [[s.rung, s.to, s.reason] for s in steps],
    "error": float((linear(x) - want).abs().max() / want.abs().max()),
}))
"""

#: What a probe of the processor finds, and what is compiled for afterwards.
PROBED = """
import json
from dataclasses import replace
from rung.core.value import FrozenDict
from rung.hardware import detect
from rung.kernels.cpu import target
from rung.run.probe import probe

device = detect.devices(cached=False)[0]
software = {name: version for name, version in device.software.items() if name != "torch"}
found = probe(replace(device, software=FrozenDict(software))).capability("isa.kernels")
print(json.dumps({
    "level": found.detail, "source": found.source, "compiled": target.level().name,
    "wide": "avx512f" in target.features(), "child": target.shared(),
}))
"""


def run(code: str, cache: Path, *arguments: str, source: Path = SOURCE.parent, **environment: str) -> dict:
    """The JSON that a program prints last, in a process with a cache of its own."""
    clean = {k: v for k, v in os.environ.items() if k not in ("RUNG_CPU_LEVEL", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")}
    clean |= {"PYTHONPATH": str(source), "RUNG_CACHE": str(cache), **environment}
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def faked(cache: Path, how: str = "wrong", **right: list[str]) -> dict:
    return run(FAKED, cache, json.dumps(right), how)


@pytest.fixture
def broken(tmp_path: Path):
    """A copy of rung in which a level's file ends with more code."""

    def make(level: str, code: str) -> Path:
        shutil.copytree(SOURCE, tmp_path / "rung", ignore=shutil.ignore_patterns("__pycache__"))
        with (tmp_path / "rung" / "kernels" / "isa" / "levels" / f"{level}.py").open("a") as file:
            file.write(code)
        return tmp_path

    return make


def test_the_next_level_at_which_a_kernel_is_right_is_taken_and_kept(tmp_path):
    best, middle, low = LEVELS[0], LEVELS[1], LEVELS[2]
    first = faked(tmp_path, few=[low], many=LEVELS)
    assert first["level"] == first["child"] == low
    assert first["right"] == {"few": True, "many": True}
    ((rung, to, reason, step),) = first["steps"]
    assert (rung, to, step) == ("few", f"few at level {low}", "broken")
    assert reason == f"at level {best}: self-check: value (0, 0) is 1 instead of 2"
    assert first["started"] == [[best, 2], [middle, 1], [low, 1], [low, 1]]  # at last the one that was right above
    again = faked(tmp_path, few=[], many=[])
    assert (again["level"], again["started"], again["right"]) == (low, [], first["right"])


def test_a_kernel_that_is_wrong_on_every_level_changes_none(tmp_path):
    found = faked(tmp_path, few=[], many=LEVELS)
    assert (found["level"], found["steps"], found["child"]) == (LEVELS[0], [], "")
    assert found["right"] == {"few": False, "many": True}


def test_a_busy_machine_is_no_reason_to_leave_a_level(tmp_path):
    found = faked(tmp_path, "timeout", few=[LEVELS[1]])
    assert (found["level"], found["started"]) == (LEVELS[0], [[LEVELS[0], 1]])


def test_a_processor_that_refuses_what_it_lists(broken, tmp_path):
    """Its first child ends with an illegal instruction; then all that is compiled is restricted."""
    code = "\nimport os, signal\n\ndef die(b, codes, x, *more):\n    os.kill(os.getpid(), signal.SIGILL)\n"
    field = "dot" if "vnni" in LEVELS[0] else "pairs"
    code += f"\nimport dataclasses\nLEVEL = dataclasses.replace(LEVEL, {field}=die)\n"
    found = run(PROBED, tmp_path / "cache", source=broken(LEVELS[0], code))
    assert found["level"] == found["compiled"] == LEVELS[1]
    assert f"not {LEVELS[0]}: illegal instruction" in found["source"]
    assert found["child"]["RUNG_CPU_LEVEL"] == LEVELS[1]
    again = run(PROBED, tmp_path / "cache", source=tmp_path, RUNG_CPU_LEVEL="generic")
    assert (again["compiled"], again["wide"]) == ("generic", False)  # what a person allows goes below what is proved


@pytest.mark.slow
@pytest.mark.skipif("ssse3" not in LEVELS, reason="needs SSSE3")
def test_wrong_sums_of_a_level_for_real(broken, tmp_path):
    """AVX2's products have the wrong sign: the child sees it, and the product is made with SSSE3."""
    code = "\nimport dataclasses\n\ndef negative(b, codes, x):\n    return [b.neg(x86.pairs(b, codes, x)[0])]\n"
    code += "\nLEVEL = dataclasses.replace(LEVEL, pairs=negative)\n"
    source = broken("avx2", code)
    found = run(PRODUCT, tmp_path / "cache", source=source, RUNG_CPU_LEVEL="avx2")
    assert (found["level"], found["rung"]) == ("ssse3", "numba.row")
    assert found["error"] < 0.02
    assert {step[1] for step in found["steps"]} == {"numba.row at level ssse3", "numba.tile at level ssse3"}
    again = run(PRODUCT, tmp_path / "cache", source=source, RUNG_CPU_LEVEL="avx2")
    assert (again["level"], again["error"]) == ("ssse3", found["error"])


@pytest.mark.parametrize("level", ["nonsense", "neon"])
def test_a_level_that_is_none_is_a_wrong_question(level, tmp_path):
    environment = {**os.environ, "RUNG_CPU_LEVEL": level, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "rung", "formats"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"RUNG_CPU_LEVEL={level}" in done.stderr
    assert "unset RUNG_CPU_LEVEL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_processor_that_is_newer_than_this_one_by_name_is_held_to_this_ones_features(tmp_path):
    code = "from rung.kernels.isa import probes; import json; print(json.dumps({'wrong': probes.check('isa.kernels')}))"
    assert run(code, tmp_path, NUMBA_CPU_NAME="graniterapids") == {"wrong": ""}
