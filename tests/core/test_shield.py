"""Calls that Ctrl-C does not cut: it is raised at once, and the call goes on to its end."""

import _thread
import subprocess
import sys
import threading

import pytest
from tests.interrupting import alarms, ended, interrupt

from rung.core.shield import Outcome, Workers, import_whole, shielded


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


def test_workers_make_calls_in_order_and_give_their_outcomes():
    workers, order = Workers(1), []
    found = [workers.submit(lambda n: order.append(n) or n * n, number) for number in range(5)]
    failing = workers.submit(lambda: {}["lost"])
    assert [outcome.result() for outcome in found] == [0, 1, 4, 9, 16]
    assert order == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="lost"):
        failing.result()
    workers.close()


def test_closing_drops_the_calls_that_have_not_begun():
    workers, begun, go, order = Workers(1), threading.Event(), threading.Event(), []
    workers.submit(lambda: (begun.set(), go.wait(60), order.append("first")))
    dropped = workers.submit(order.append, "second")
    assert begun.wait(60)
    threading.Timer(0.05, go.set).start()
    workers.close()
    assert order == ["first"]
    with pytest.raises(RuntimeError, match="before they began"):
        dropped.result()
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(order.append, "third")


def test_a_map_raises_what_the_first_item_raises_and_its_threads_end():
    before = _thread._count()
    with Workers(3) as workers:
        assert workers.map(len, ["a", "bc", ""]) == [1, 2, 0]
    with pytest.raises(KeyError, match="lost"), Workers(2) as workers:
        workers.map({"kept": 1}.__getitem__, ["kept", "lost", "gone"])
    assert ended(before)


def test_threads_end_when_nobody_holds_their_workers():
    before, workers = _thread._count(), Workers(2)
    assert workers.submit(sum, [1, 2], start=3).result() == 6
    assert _thread._count() > before
    del workers
    assert ended(before)


def test_a_result_that_does_not_come_in_time_may_come_later():
    outcome = Outcome()
    with pytest.raises(TimeoutError):
        outcome.result(0.01)
    outcome.fill(lambda: 5)
    assert [outcome.result(), outcome.result()] == [5, 5]


CUT = """
import sys, threading
from rung.core.shield import Workers, shielded
from tests.interrupting import alarms, interrupt, moments
def work():
    with Workers(2) as workers:
        workers.map(sum, [range(20000)] * 8)
    shielded(lambda: sum(range(20000)))
with alarms():
    print(sum(interrupt(work, at) for at in moments(300, 0.01)) > 30)
"""


def test_a_process_ends_after_interrupts_at_any_moment():
    """Conditions and futures of the standard library are left locked by some of them, and the end waits for ever."""
    done = subprocess.run([sys.executable, "-c", CUT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")
