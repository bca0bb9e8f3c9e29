"""Jobs in a child: whatever happens there costs one job."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rung.run import worker
from rung.run.worker import Job, Outcome, run

JOBS = "tests.run.child_jobs"


def job(name, /, **arguments):
    return Job.of(f"{JOBS}:{name}", **arguments)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_values_go_both_ways_and_noise_spoils_nothing():
    (got,) = run([job("echo", text="ü\n\"'", number=1.5, list=[1, None, True])], 30)
    assert got.ok
    assert got.to_json()["value"] == {"text": "ü\n\"'", "number": 1.5, "list": [1, None, True]}


def test_one_child_serves_many_jobs():
    first, second = run([job("process"), job("process")], 30)
    assert first.value == second.value != os.getpid()


@pytest.mark.parametrize(
    ("name", "how", "error"),
    [
        ("raises", "raised", "ValueError: one sentence"),
        ("segfault", "crashed", "segmentation fault"),
        ("abort", "crashed", "the process aborted: LLVM ERROR: Cannot select: intrinsic"),
        ("illegal", "crashed", "illegal instruction"),
        ("killed", "crashed", "the process was killed, as the kernel does when memory runs out"),
        ("exits", "crashed", "the process ended with status 3"),
        ("hang", "timeout", "no answer within 2 s"),
        ("unspeakable", "raised", "TypeError: object has no JSON form"),
        ("nothing_of_that_name", "raised", f"AttributeError: module '{JOBS}' has no attribute 'nothing_of_that_name'"),
    ],
)
def test_trouble_costs_one_job(name, how, error):
    bad, good = run([job(name), job("echo", x=1)], 2.0 if name == "hang" else 30)
    assert (bad.how, bad.error, bad.value) == (how, error, None)
    assert good.value == {"x": 1}


def test_a_module_that_is_not_there():
    (got,) = run([Job.of("no_such_module:f")], 30)
    assert (got.how, got.error) == ("raised", "ModuleNotFoundError: No module named 'no_such_module'")


def test_large_answers_and_large_questions():
    big, echoed = run([job("large", size=3_000_000), job("echo", text="y" * 300_000)], 30)
    assert len(big.value) == 3_000_000
    assert len(echoed.value["text"]) == 300_000


def test_prepare_runs_once_in_every_child():
    outcomes = run(
        [job("times_prepared"), job("times_prepared"), job("segfault"), job("times_prepared")],
        30,
        prepare=job("prepare"),
    )
    assert [o.value for o in outcomes] == [1, 1, None, 1]


def test_jobs_share_the_outcome_of_a_failed_prepare():
    outcomes = run([job("process")] * 3, 30, prepare=job("prepare", fail="no driver"))
    assert outcomes == [Outcome("raised", error="LookupError: no driver")] * 3


def test_too_many_lost_children_end_it():
    outcomes = run([job("segfault"), job("process"), job("abort"), job("process"), job("process")], 30, most_lost=2)
    assert [o.how for o in outcomes] == ["crashed", "returned", "crashed", "skipped", "skipped"]
    assert "2 attempts" in outcomes[-1].error


def test_the_environment_is_added_to():
    (got,) = run([job("variable", name="RUNG_TEST_X")], 30, environment={"RUNG_TEST_X": "there"})
    assert got.value == "there"
    assert "RUNG_TEST_X" not in os.environ


def test_the_child_imports_what_its_parent_does(tmp_path, monkeypatch):
    # An empty folder of a package's name in the current folder must not stand in for the package.
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    (got,) = run([job("where")], 30)
    path, folder = got.value
    assert list(path) == sys.path
    assert folder == str(tmp_path)


def test_progress_counts_the_jobs():
    counts = []
    run([job("process"), job("segfault"), job("process")], 30, progress=counts.append)
    assert counts == [1, 2, 3]


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    outcomes = run([job("process")] * 2, 30)
    assert [o.how for o in outcomes] == ["crashed"] * 2
    assert "no child process" in outcomes[0].error


def test_a_child_that_does_not_start(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'cannot load shared library' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    (got,) = run([job("process")], 30)
    assert got.error == "the child did not start: the process ended with status 127: cannot load shared library"


def test_a_child_that_never_listens(monkeypatch, tmp_path):
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nsleep 600\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    monkeypatch.setattr(worker, "START_LIMIT", 0.3)
    (got,) = run([job("process")], 30)
    assert (got.how, got.error) == ("timeout", "the child did not start")


def test_what_a_job_starts_dies_with_it(tmp_path):
    mark = tmp_path / "pid"
    (got,) = run([job("child_of_the_child", mark=str(mark))], 60)
    assert got.how == "crashed"
    wait_until(lambda: not alive(int(mark.read_text())))


# A shell that starts the tests in the background has them ignore SIGINT, and their children with them.
SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:] = {path!r}
from rung.run.worker import Job, run
run([Job.of("tests.run.child_jobs:hang", mark={mark!r})], 600)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_parent_leaves_no_child_behind(tmp_path, how):
    mark = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(path=sys.path, mark=str(mark))],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: mark.exists() and mark.read_text())
    pid = int(mark.read_text())
    assert alive(pid)
    parent.send_signal(how)
    parent.wait(30)
    wait_until(lambda: not alive(pid))


def test_no_file_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    run([job("process"), job("segfault"), job("process")], 30)
    assert len(os.listdir("/proc/self/fd")) == before


def test_jobs_and_outcomes_are_json():
    for value in (job("echo", x=[1]), Outcome("raised", error="E: x")):
        assert type(value).from_json(value.to_json()) == value


def test_a_second_child_works_while_this_process_does_and_what_it_loses_is_done_again():
    several = [job("echo", number=1), job("exits"), job("process"), job("process")]
    with worker.SecondChild(several, 30) as second:
        (here,) = run([job("process")], 30)
        first, lost, *rest = second.outcomes()
    assert first.value == {"number": 1}
    assert (lost.how, lost.error) == ("crashed", "the process ended with status 3: noise on stderr")
    assert rest[0].value == rest[1].value not in (here.value, os.getpid())
    with worker.SecondChild([], 30) as none:
        assert none.outcomes() == []


def test_a_second_child_that_cannot_start_or_hangs_costs_no_other_job(monkeypatch, tmp_path):
    mark = tmp_path / "mark"
    with worker.SecondChild([job("hang", mark=str(mark)), job("echo", number=1)], 2) as second:
        hung, done = second.outcomes()
    assert (hung.how, done.value) == ("timeout", {"number": 1})
    assert not alive(int(mark.read_text()))
    with monkeypatch.context() as patch:
        patch.setattr(worker.os, "pipe", lambda: (_ for _ in ()).throw(OSError("too many open files")))
        with worker.SecondChild([job("echo", number=1)], 30) as second:
            patch.undo()
            assert [each.value for each in second.outcomes()] == [{"number": 1}]


def test_leaving_a_second_child_ends_it(tmp_path):
    mark = tmp_path / "mark"
    with worker.SecondChild([job("hang", mark=str(mark))], 30):
        wait_until(lambda: mark.exists() and mark.read_text())
        assert alive(int(mark.read_text()))
    assert not alive(int(mark.read_text()))
