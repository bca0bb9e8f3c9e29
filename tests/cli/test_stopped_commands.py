"""Commands that write, stopped by Ctrl-C at random moments: nothing is half written, and the next run ends well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interrupting import WORKS, stop_again_and_again


@pytest.mark.parametrize("name", ["quantize", "convert"])
def test_stopped_three_times(name: str, tmp_path: Path) -> None:
    outcome = stop_again_and_again(name, tmp_path, 3)
    assert not outcome.wrong
    assert outcome.stopped


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_stopped_fifty_times(name: str, tmp_path: Path) -> None:
    outcome = stop_again_and_again(name, tmp_path, 50, seed=1)
    assert not outcome.wrong
    assert outcome.stopped >= 40
