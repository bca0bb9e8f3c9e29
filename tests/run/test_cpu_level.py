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

#: The bytes of an encoder, and where they were made: ``started`` says whether Numba runs before its check.
ENCODED = """
import json, sys
import numpy as np
from rung import formats
from rung.kernels.cpu import target
from rung.kernels.cpu.encode import encoding
from rung.run.self_check import encoders

if sys.argv[1] == "started":
    import rung.kernels.isa, numba
Q8_0, notes = formats.get("q8_0"), []
found = encoders.prove([Q8_0], notes.append)
before = formats.encode(np.random.default_rng(3).standard_normal((19, 4096), dtype=np.float32), formats.get("f32"))
made, want = encoding.convert(before, Q8_0, threads=1), formats.convert(before, Q8_0)
print(json.dumps({
    "level": target.level().name, "compiled": Q8_0 in found, "notes": notes, "features": sorted(target.features()),
    "right": all(np.array_equal(made.parts[part], each) for part, each in want.parts.items()),
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


@pytest.mark.levels
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
    """AVX2's products have the wrong sign: the child sees it, and the product is made at the level below."""
    lower = LEVELS[LEVELS.index("avx2") + 1]
    code = "\nimport dataclasses\n\ndef negative(b, codes, x):\n    return [b.neg(x86.pairs(b, codes, x)[0])]\n"
    code += "\nLEVEL = dataclasses.replace(LEVEL, pairs=negative)\n"
    source = broken("avx2", code)
    found = run(PRODUCT, tmp_path / "cache", source=source, RUNG_CPU_LEVEL="avx2")
    assert (found["level"], found["rung"]) == (lower, "numba.row")
    assert found["error"] < 0.02
    assert {step[1] for step in found["steps"]} == {f"numba.row at level {lower}", f"numba.tile at level {lower}"}
    again = run(PRODUCT, tmp_path / "cache", source=source, RUNG_CPU_LEVEL="avx2")
    assert (again["level"], again["error"]) == (lower, found["error"])


@pytest.mark.levels
@pytest.mark.parametrize("numba", ["started", "later"])
def test_an_encoder_that_is_wrong_at_a_level_is_compiled_for_the_next(broken, tmp_path, numba):
    """The lowest byte of each code is flipped at the highest level; NumPy encodes only where no level is right."""
    level, lower = LEVELS[0], LEVELS[1]
    source = broken(level, "")
    emitted = "store(b, address, b.trunc(value, ir.VectorType(I8, LANES)))"
    path = source / "rung" / "kernels" / "isa" / "registers.py"
    code = path.read_text(encoding="utf-8")
    assert code.count(emitted) == 1
    wrong = f"value = b.xor(value, constant(value.type, 1)) if target.level().name in WRONG else value\n    {emitted}"
    code = code.replace(emitted, wrong)
    path.write_text(f"{code}\nWRONG = ('{level}',)\n", encoding="utf-8")
    found = run(ENCODED, tmp_path / "cache", numba, source=source)
    assert (found["level"], found["compiled"], found["right"]) == (lower, True, True)
    assert any(f"compiled for level {lower}: at {level} it is wrong (data of normal" in note for note in found["notes"])
    best = next(each for each in target.levels() if each.name == level)
    more_than_level = set(best.targets[0].needs) <= set(found["features"])
    assert more_than_level == (numba == "started")  # else all that is compiled is held to the level
    again = run(ENCODED, tmp_path / "cache", numba, source=source)
    assert (again["level"], again["right"], len(again["notes"])) == (lower, True, 1)
    path.write_text(f"{code}\nWRONG = {tuple(LEVELS)}\n", encoding="utf-8")
    found = run(ENCODED, tmp_path / "cache", numba, source=source)
    assert (found["level"], found["compiled"]) == (level, False)
    assert found["notes"][-1].startswith("NumPy encodes q8_0, which takes longer: the compiled encoder failed")


UNLIKE = """
import json
from rung.hardware import topology

flags = next(iter(topology.features()))
topology.features = lambda root=None: [flags, frozenset(each for each in flags if not each.startswith("avx512"))]
from rung.hardware import detect
from rung.kernels.cpu import target
from rung.kernels.isa import probes
from rung.kernels.isa.generic import add, load, store
import numba

@numba.njit("void(int64)")
def doubled(address):
    store(address, add(load(address), load(address)))

device = detect.devices(cached=False)[0]
print(json.dumps({
    "level": target.level().name, "declared": device.capability("isa.kernels").detail,
    "wrong": probes.check("isa.kernels"), "features": sorted(target.features()),
    "assembly": "".join(doubled.inspect_asm().values()), "doubts": target.doubts(),
}))
"""


@pytest.mark.skipif("avx512" not in LEVELS, reason="needs AVX-512")
def test_what_only_some_cores_have_is_not_compiled_for(tmp_path):
    found = run(UNLIKE, tmp_path)
    needs = {each.name: each.target("x86_64", target.features()).needs for each in target.levels()}
    lower = next(level for level in LEVELS if not any("avx512" in need for need in needs[level]))
    assert found["level"] == found["declared"] == lower
    assert found["wrong"] == ""
    assert not [each for each in found["features"] if each.startswith("avx512")]
    assert "ymm" in found["assembly"]
    assert "zmm" not in found["assembly"]
    assert found["doubts"] == []  # nobody set a variable


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
    assert run(code, tmp_path, NUMBA_CPU_NAME="generic") == {"wrong": ""}  # Numba takes that for SSE2


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NUMBA_CPU_NAME": "graniterapids"}, "NUMBA_CPU_NAME=graniterapids alone changes no instruction"),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+ssse3,+amx-fp8"}, "NUMBA_CPU_FEATURES names amx-fp8,"),
        ({"NUMBA_CPU_NAME": "core2", "NUMBA_CPU_FEATURES": "+ssse3"}, ""),
        ({"NUMBA_CPU_NAME": "graniterapids", "RUNG_CPU_LEVEL": "ssse3"}, ""),
    ],
)
def test_a_target_that_this_processor_does_not_follow_is_said(variables, said, tmp_path):
    clean = {k: v for k, v in os.environ.items() if k not in ("RUNG_CPU_LEVEL", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")}
    clean |= {"PYTHONPATH": str(SOURCE.parent), "RUNG_CACHE": str(tmp_path), "COLUMNS": "200"}
    for command in (["devices"], ["devices", "cpu"]):
        done = subprocess.run(
            [sys.executable, "-m", "rung", *command], env=clean | variables, capture_output=True, text=True, check=True
        )
        assert said in done.stdout
        assert ("NUMBA_" in done.stdout) == bool(said)
