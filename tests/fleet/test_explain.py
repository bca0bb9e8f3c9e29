"""``rung explain --jsonl --fleet``: the lines are those of one machine, each once and in order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

_LOGS = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "nothing is wrong here",
)
#: So many rows that a node is still at work when another is killed.
_ROWS = 600


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A file of rows, some with an environment, empty, no JSON, or with a name that is half of a pair."""
    logs, gpus = [f"step {k}\n{_LOGS[k % 4]}" for k in range(_ROWS)], ("Quadro P2200", "none", "RTX 2070")
    named = [{"id": k, "log": log, "environment": {"gpu": gpus[k % 3]}} for k, log in enumerate(logs)]
    odd = [{"id": 7}, {"id": "\ud800", "log": "x" * 3_000_000}]
    lines = ["", "no JSON", '{"id": "ä", "log": "ö"}', *map(json.dumps, [*odd, *named])]
    path = tmp_path_factory.mktemp("explain") / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(fleet, rows):
    """Return the answer of one machine to the rows: its code, output, and error."""
    done = fleet[0].rung("explain", "--jsonl", str(rows), seconds=300)
    return done.returncode, done.stdout, done.stderr


def test_the_lines_are_those_of_one_machine(fleet, rows, alone):
    done = fleet[1].rung("explain", "--jsonl", str(rows), "--fleet", seconds=300)
    assert (done.returncode, done.stdout) == alone[:2]
    assert done.stdout.count("\n") == _ROWS + 4
    noted, said = done.stderr.partition("\n")[::2]
    assert noted.startswith("rows by node: ")
    assert sum(map(int, re.findall(r"(?:one|two) (\d+)", noted))) == _ROWS + 4
    assert said == alone[2]


def test_a_process_that_is_killed_costs_no_row_and_doubles_none(fleet, rows, alone, tmp_path):
    head, node, _ = fleet
    out, said = tmp_path / "out", tmp_path / "said"
    command = head.command("-m", "rung", "explain", "--jsonl", str(rows), "--fleet")
    with (
        open(out, "wb") as file,
        open(said, "wb") as error,
        subprocess.Popen(command, env=head.environment, stdout=file, stderr=error) as running,
    ):
        until = time.monotonic() + 120
        while not (victims := _answerers(node)) or not out.stat().st_size:
            assert time.monotonic() < until
            assert running.poll() is None
            time.sleep(0.002)
        os.kill(victims[0], signal.SIGKILL)
        assert running.wait(300) == alone[0]
    assert out.read_text("utf-8") == alone[1], said.read_text("utf-8")


def _answerers(machine):
    """The processes that answer rows on a machine."""
    found = []
    for pid in machine.processes():
        try:
            found += [pid] * Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Answerer")
        except OSError:
            continue
    return found


def test_a_log_of_its_own_is_not_for_the_fleet(machines, rows):
    said = machines[2].rung("explain", "CUDA out of memory", "--fleet")
    assert (said.returncode, "A fleet explains rows" in said.stderr) == (2, True)
    assert "in no fleet" in machines[2].rung("explain", "--jsonl", str(rows), "--fleet").stderr
