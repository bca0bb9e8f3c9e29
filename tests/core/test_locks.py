"""Locks between processes and marks of use, with and without the system's own locks."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rung.core import locks

HOLD = (
    "import sys, time, pathlib\n"
    "sys.modules.update(dict.fromkeys(filter(None, sys.argv[2].split(','))))\n"
    "from rung.core import locks\n"
    "with locks.locked(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(60)\n"
)
USE = (
    "import sys, time, pathlib\n"
    "from rung.core import locks\n"
    "locks.mark_use(pathlib.Path(sys.argv[1]))\n"
    "print('held', flush=True)\n"
    "time.sleep(60)\n"
)


def start(program: str, path: Path, hidden: str = "") -> subprocess.Popen[str]:
    """Start a process that holds a lock or marks a use until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", program, str(path), hidden], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("hidden", ["", "fcntl,msvcrt"])
def test_a_lock_holds_between_processes_and_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    for name in filter(None, hidden.split(",")):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "locks" / "one.lock"
    other = start(HOLD, path, hidden)
    assert locks.try_lock(path) is None
    other.kill()
    other.wait()
    waited: list[bool] = []
    with locks.locked(path, lambda: waited.append(True)):
        assert locks.try_lock(path) is None
    release = locks.try_lock(path)
    assert release is not None
    release()


def test_waiting_is_told_once(tmp_path: Path) -> None:
    path, calls = tmp_path / "one.lock", []
    other = start(HOLD, path)

    def wait() -> None:
        calls.append(time.monotonic())
        other.kill()
        other.wait()

    with locks.locked(path, wait):
        assert len(calls) == 1


def test_marks_of_use_count_while_their_process_runs(tmp_path: Path) -> None:
    folder = tmp_path / "uses"
    assert locks.users_of(folder) == []
    other = start(USE, folder)
    locks.mark_use(folder)
    assert locks.users_of(folder) == [other.pid], "this process counts for nothing"
    other.kill()
    other.wait()
    assert locks.users_of(folder) == []


def test_a_later_process_with_the_same_number_is_another(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("1 5.00")  # process 1 runs, and did not start in 1970
    (tmp_path / "x").write_text("no owner")
    assert locks.users_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert locks.is_running(locks.this_process())


def test_a_file_system_without_locks_gets_files_that_name_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "one.lock"
    with locks.locked(path):
        assert locks.try_lock(path) is None
    (tmp_path / "one.lock.owner").write_text("1 5.00")  # its process has ended
    with locks.locked(path):
        assert locks.try_lock(path) is None
    assert not (tmp_path / "one.lock.owner").exists()
