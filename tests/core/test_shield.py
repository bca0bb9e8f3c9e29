"""Calls that Ctrl-C does not cut: it is raised at once, and the call goes on to its end."""

import sys
import threading

import pytest
from tests.interrupting import alarms, interrupt

from rung.core.shield import import_whole, shielded


def test_what_a_call_returns_and_raises():
    assert shielded(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(KeyError, match="lost"):
        shielded(lambda: {}["lost"])


def test_an_interrupt_comes_at_once_and_the_call_ends_all_the_same():
    stop, over = threading.Event(), threading.Event()

    def work():
        stop.wait(60)
        over.set()

    with alarms():
        assert interrupt(lambda: shielded(work), 0.05)
    assert not over.is_set()
    stop.set()
    assert over.wait(60)


def test_an_import_is_whole_after_an_interrupt(tmp_path, monkeypatch):
    """A module whose first half has an effect that its second half needs, as torch's and numba's do."""
    (tmp_path / "slow_to_import.py").write_text(
        "import time, sys\n"
        "assert not hasattr(sys, 'slow_marks'), 'imported twice'\n"
        "sys.slow_marks = 1\n"
        "for _ in range(50): time.sleep(0.01)\n"
        "whole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with alarms():
            assert interrupt(lambda: import_whole("slow_to_import"), 0.1)
        assert import_whole("slow_to_import").whole
    finally:
        del sys.slow_marks
        del sys.modules["slow_to_import"]
