"""Every kernel at every level of CPU instructions that is here: a child for each, which compiles for no more.

Products of all packed formats, encoders and two whole models are compared with float64, NumPy and stored logits: by
``make test-levels`` at the level of most processors, by ``make test-all`` at each below the processor's own, where
the suites of all kernels run at each, too. All other tests run at the processor's own.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rung.kernels.cpu import target
from rung.kernels.cpu.pack.layouts import FORMATS
from rung.kernels.isa import levels

ROOT = Path(__file__).parents[2]
LEVELS = [level.name for level in target.levels()]
#: The level of most processors.
QUICK = "avx2"
_SLOW = {True: [pytest.mark.slow], False: []}
#: Attention, whole tokens, rows of embeddings, packing, encoders, products, optimizers, layers, error feedback, splats
#: both ways with their losses, bitsandbytes' operators, and the logits of every GGUF fixture.
SUITES = (
    "tests/ops",
    "tests/kernels",
    "tests/formats",
    "tests/nn/test_layers.py",
    "tests/nn/test_optim.py",
    "tests/engine/test_sampling.py",
    "tests/run/test_encoders.py",
    "tests/quantization/test_rounding.py",
    "tests/splats/test_rasterization.py",
    "tests/splats/training/test_parts.py",
    "tests/splats/training/test_eight.py",
    "tests/real/test_gguf.py",
    "tests/hub/bitsandbytes/test_kernels.py",
)


def child(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the output of a Python that compiles for a level."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")}
    environment |= {"RUNG_CPU_LEVEL": level, "OMP_WAIT_POLICY": "passive"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "level", [pytest.param(each, marks=[pytest.mark.levels, *_SLOW[each != QUICK]]) for each in LEVELS[1:]]
)
def test_products_of_every_format_and_encoders(level):
    done = child(level, "tests.emulation.checks")
    assert done.returncode == 0, done.stderr[-2000:]
    first, *checks = map(json.loads, done.stdout.splitlines())
    assert first["level"] == level
    assert {check["check"]: check["wrong"] for check in checks if check["wrong"]} == {}
    assert sum(check["check"].startswith("linear ") for check in checks) == len(FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS[1:])
def test_the_suites_of_all_kernels(level):
    done = child(level, "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--ignore", __file__, *SUITES)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_level_compiles_for_no_more_than_it_says():
    """Else the tests above would prove what LLVM makes of the whole processor."""
    code = "from rung.kernels.cpu import target; print(*sorted(target.features()))"
    environment = {**os.environ, "RUNG_CPU_LEVEL": "generic"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not {"ssse3", "avx", "avx2", "avx512f", "f16c", "dotprod", "i8mm"} & set(done.stdout.split())


def test_what_differs_between_levels_stands_in_their_files_alone():
    """No kernel asks for a level or a kind of processor by its name; ``generic`` is a word of other meanings, too."""
    kernels = ROOT / "src" / "rung" / "kernels"
    kinds = {target.arch.name: level for level in levels.every() for target in level.targets}
    names = {level.name for level in levels.every()} - {"generic"} | set(kinds)
    own = {kernels / "isa" / "x86.py", kernels / "isa" / "arm.py", *(kernels / "isa" / "levels").glob("*.py")}
    for path in {*kernels.glob("cpu/**/*.py"), *kernels.glob("isa/**/*.py")} - own:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        named = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)} & names
        assert not named, f"{path.relative_to(ROOT)}: {named}"


def test_what_processors_are_asked_for_is_what_the_files_say():
    """It is read where no compiler is installed."""
    text = (ROOT / "src" / "rung" / "hardware" / "cpu_levels.table").read_text(encoding="utf-8")
    assert text == levels.table(), "make generate writes it"
