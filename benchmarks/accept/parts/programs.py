"""Programs that the device refuses, under ``rung exec``: they go on, and the report says what was done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.accept.check import ROOT, Check, Target

ORDER, SECONDS = 9, 240
#: What they are given: the device that they compute on.
_PROGRAMS = {"gemma": True, "bitsandbytes": True, "cuda/train_amp": False}


def run(target: Target) -> Iterator[Check]:
    """Run each with rung; where it names its device its answer is that of the processor without rung."""
    exec_ = [sys.executable, "-m", "rung", "exec", *(["--device", "cpu"] if target.is_cpu else []), "--"]
    for name, on_cuda in _PROGRAMS.items():
        program = [sys.executable, str(ROOT / "tests" / "exec" / "programs" / f"{name}.py")]
        helped = _run([*exec_, *program, *(["cuda"] if on_cuda else [])])
        facts = {"ended_with": helped.returncode, "printed": helped.stdout[-500:], "said": helped.stderr[-500:]}
        holds = helped.returncode == 0
        if on_cuda:
            facts["on_the_processor"] = _run([*program, "cpu"]).stdout[-500:]
            holds = holds and facts["on_the_processor"] == facts["printed"]
        yield Check(name, holds, facts)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
