"""``rung quantize --fleet``: nodes encode, and the file is that of one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

_SOURCE = str(Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-f16.gguf")


@pytest.mark.parametrize("driver", [0, 1])
def test_the_file_is_that_of_one_machine(fleet, tmp_path, driver):
    machine = fleet[driver]
    alone, together = tmp_path / "alone.gguf", tmp_path / "together.gguf"
    assert machine.rung("quantize", _SOURCE, str(alone), "--format", "q4_0").returncode == 0
    done = machine.rung("quantize", _SOURCE, str(together), "--format", "q4_0", "--fleet", seconds=120)
    assert done.returncode == 0, done.stderr
    assert together.read_bytes() == alone.read_bytes()
    assert "one " in done.stderr
    assert "two " in done.stderr


def test_what_is_judged_by_a_text_is_refused(fleet, tmp_path):
    done = fleet[0].rung("quantize", _SOURCE, str(tmp_path / "a.gguf"), "--size", "1MB", "--fleet")
    assert done.returncode != 0
    assert "--format alone" in done.stderr


def test_a_machine_that_is_in_no_fleet_says_so(machines, tmp_path):
    done = machines[2].rung("quantize", _SOURCE, str(tmp_path / "a.gguf"), "--format", "q4_0", "--fleet")
    assert "in no fleet" in done.stderr
