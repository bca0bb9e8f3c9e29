"""Kernels that a child compiles: this process finds them on disk, and does the work itself where the child cannot."""

import os
import subprocess
import sys

import pytest

from rung.run import precompile, worker

_CODE = """
from rung.kernels.cpu.thread_pool import enter
from rung.run.precompile import compile_apart

before = enter.on_disk
compile_apart([enter])
print(before, enter.on_disk, enter.from_cache)
"""


def _said(**environment):
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_what_a_child_has_compiled_is_loaded(tmp_path):
    assert _said(RUNG_CACHE=str(tmp_path)) == ["False", "True", "True"]
    assert _said(RUNG_CACHE=str(tmp_path)) == ["True", "True", "True"]


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_has_another_for_as_long_as_the_process(tmp_path):
    assert _said(RUNG_CACHE="/proc/rung", TMPDIR=str(tmp_path), NUMBA_CACHE_DIR="") == ["False", "True", "True"]
    assert not list(tmp_path.iterdir())


class Kernel:
    """A kernel by name alone."""

    def __init__(self, name, on_disk):
        self.name, self.on_disk = name, on_disk


@pytest.mark.parametrize("how", ["crashed", "timeout", "returned"])
def test_only_what_is_missing_is_asked_for_in_one_child_and_what_it_cannot_do_is_no_error(monkeypatch, how):
    calls = []
    monkeypatch.setattr(worker, "run", lambda jobs, *arguments, **more: calls.append(jobs) or [worker.Outcome(how)] * 2)
    precompile.compile_apart([Kernel("m:a", False), Kernel("m:b", True), Kernel("m:c", False)])
    precompile.compile_apart([Kernel("m:b", True)])
    assert [[job.arguments["name"] for job in jobs] for jobs in calls] == [["m:a", "m:c"]]
