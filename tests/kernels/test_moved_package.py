"""Kernels compiled by a package in one folder are found by the same package in another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rung

PROGRAM = """
from rung.kernels.cpu.compiled import Kernel
from rung.kernels.cpu.sample import choose
print([each.from_cache for each in vars(choose).values() if isinstance(each, Kernel)])
"""


def test_kernels_are_found_from_another_folder(tmp_path):
    said = []
    for name in ("one", "other"):
        shutil.copytree(Path(rung.__file__).parent, tmp_path / name / "rung", ignore=shutil.ignore_patterns("*.gguf"))
        path = os.pathsep.join([str(tmp_path / name), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "RUNG_CACHE": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], env=environment, capture_output=True, text=True)
        said.append(eval(done.stdout))
    assert said[0]
    assert not any(said[0])
    assert all(said[1])
