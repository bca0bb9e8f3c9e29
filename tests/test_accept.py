"""The acceptance suite itself: a part that fails, breaks or takes too long is told, and what it found is kept."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from types import ModuleType

import pytest
from benchmarks.accept import __main__ as suite
from benchmarks.accept import faults, parts
from benchmarks.accept.check import ROOT, Check, Target


@pytest.fixture
def part(monkeypatch, tmp_path):
    """Runs a function as a part of the suite in this process, and returns what it wrote."""

    def perform(run):
        module = ModuleType("part")
        module.run = run
        monkeypatch.setitem(sys.modules, f"{parts.__name__}.planted", module)
        suite.perform("planted", Target("cpu", True, tmp_path))
        return json.loads((tmp_path / "planted.json").read_text())

    return perform


def test_one_check_that_fails_fails_the_part(part, capsys):
    found = part(lambda target: iter([Check("a", True, {}), Check("b", False, {"why": "wrong"}), Check("c", None, {})]))
    assert [each["holds"] for each in found["checks"]] == [True, False, None]
    assert not suite.show(found)
    assert "b: why wrong" in capsys.readouterr().out
    assert suite.show(part(lambda target: iter([Check("a", True, {}), Check("c", None, {})])))


def test_a_part_that_breaks_keeps_what_it_found(part, capsys):
    def run(target):
        yield Check("first", True, {"value": 3})
        raise RuntimeError("the driver is gone")

    found = part(run)
    assert found["checks"] == [{"name": "first", "holds": True, "value": 3}]
    assert not suite.show(found)
    assert "the driver is gone" in capsys.readouterr().out


def test_a_part_that_takes_too_long_is_killed(monkeypatch, tmp_path):
    from benchmarks.accept.parts import values

    monkeypatch.setattr(values, "SECONDS", 2)
    options = argparse.Namespace(device="cpu", out=tmp_path, small=True)
    found = suite.run("values", options)
    assert found["status"] == "killed after 2 s"
    assert json.loads((tmp_path / "values.json").read_text())["status"] == "killed after 2 s"


@pytest.mark.parametrize("fault", faults.NAMES)
def test_faults_are_small_and_real(fault):
    import numpy as np

    from rung.core.types import resolve

    right = np.random.default_rng(0).normal(size=(5, 7))
    faulty = resolve(f"{faults.__name__}:{fault}.{__name__}:RIGHT").apply(right)
    assert not np.array_equal(faulty, right, equal_nan=True)
    assert np.count_nonzero(~(faulty == right)) <= right.size
    assert np.nanmax(np.abs(faulty - right)) <= 0.51 * np.abs(right).max()


class _Right:
    @staticmethod
    def apply(values):
        return values


RIGHT = _Right()


@pytest.mark.slow  # `make accept` runs it whole
def test_the_suite_as_a_command(tmp_path):
    """Steps down of this processor, in small shapes; ``make accept`` runs all parts."""
    command = [sys.executable, "-m", "benchmarks.accept", "--device", "cpu", "--out", str(tmp_path), "--small"]
    command += ["--only", "step_downs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 parts passed" in done.stdout
    steps = json.loads((tmp_path / "step_downs.json").read_text())
    assert [each["name"] for each in steps["checks"]] == ["refused", "no image", "no bfloat16"]


def test_a_device_that_is_not_here(tmp_path):
    command = [sys.executable, "-m", "benchmarks.accept", "--device", "cuda:7", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "There is no device 'cuda:7' here" in done.stderr
    assert not list(tmp_path.iterdir())
