"""Test what the process of a model may still do after the load: calls that are planted in it are refused."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.server.conftest import PLANTED, serving

HAS_LANDLOCK = sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, ctypes.c_long(0), 1) > 0
needs_landlock = pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")


@needs_landlock
def test_planted_calls_are_refused(tmp_path, monkeypatch, fault):
    secret = tmp_path / "secret"
    secret.write_text("a key")
    cache = Path(os.environ["RUNG_CACHE"])
    carried = cache / "bundles" / "a"
    for name in ("program", "bytecode"):
        (carried / name).mkdir(parents=True, exist_ok=True)
    (carried / "program" / "module.py").write_text("what the next start runs")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("PLANTED_SECRET", str(secret))
        monkeypatch.setenv("PLANTED_PORT", str(listener.getsockname()[1]))
        with serving(tmp_path, "demo", first=PLANTED) as server:
            assert "no network" in server.call("/props")[1]["sandbox"]
            assert "demo sandbox: reads its model" in server.said()
            fault.write_text("rights")
            before = server.call("/v1/completions", {"prompt": "the model", "max_tokens": 8})[1]["choices"][0]["text"]
            found = cache / "tmp" / "rights"
            until = time.monotonic() + 20
            while not found.exists():
                assert time.monotonic() < until
                time.sleep(0.05)
            rights = json.loads(found.read_text())
            found.unlink()
            assert rights.pop("add kernels") == "done"
            (cache / "kernels" / "planted").rmdir()
            assert rights.pop("run") == "CalledProcessError"
            assert rights.pop("move packages") in ("PermissionError", "OSError")  # EXDEV, as for another disk
            assert set(rights.values()) == {"PermissionError"}
            assert len(rights) == 6
            assert (carried / "program" / "module.py").read_text() == "what the next start runs"
            assert secret.read_text() == "a key"
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()
            # a grammar is compiled by a process that it starts, of modules that were not loaded yet
            form = {"prompt": "x", "max_tokens": 8, "response_format": {"type": "json_object"}}
            assert server.call("/v1/completions", form)[0] == 200
            again = server.call("/v1/completions", {"prompt": "the model", "max_tokens": 8})[1]["choices"][0]["text"]
            assert again == before


SCRIPT = """
import os, resource, signal, socket, sys, threading
from pathlib import Path
import numpy
from rung.kernels.cpu.thread_pool import TEAMS
from rung.server.child import sandbox

readable, writable, other = map(Path, sys.argv[1:4])
TEAMS.of(2)
many = numpy.ones((600, 600))
many @ many  # with the threads of its BLAS

def can(call):
    try:
        call()
    except PermissionError:
        return False
    return True

def calls():
    pair = socket.socketpair()
    pair[0].send(b"x")
    return [
        can(lambda: open(readable / "file").read()), can(lambda: open(readable / "file", "w")),
        can(lambda: open(readable / "new", "w")), can(lambda: os.rename(readable / "file", writable / "taken")),
        can(lambda: open(writable / "new", "w")), can(lambda: os.truncate(other, 0)), can(lambda: open(other)),
        can(lambda: open("/dev/null", "w")), can(socket.socket), can(lambda: socket.socket(socket.AF_UNIX)),
        can(lambda: os.chroot("/")), pair[1].recv(1) == b"x",
    ]

found, go, blocked = [], threading.Event(), threading.Event()

def before():
    go.wait()
    found.append(calls())

def deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    blocked.set()
    go.wait()

kind = sys.argv[4]
threads = [threading.Thread(target=each) for each in {"untold": [], "deaf": [before, deaf]}.get(kind, [before])]
for each in threads:
    each.start()
if len(threads) > 1:
    blocked.wait()
if kind == "untold":
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
others = len(os.listdir("/proc/self/task")) - 1
left = sandbox.close_files([readable], [writable])
sandbox.close_system_calls()
go.set()
threads.append(threading.Thread(target=lambda: found.append(calls())))
threads[-1].start()
for each in threads:
    each.join()
found.append(calls())
print([left == others if kind == "untold" else left, found])
"""


@needs_landlock
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="its system calls are in no table")
@pytest.mark.parametrize(("deaf", "left"), [("", 0), ("deaf", 1), ("untold", True)])
def test_rights_are_taken_from_all_threads(tmp_path, deaf, left):
    """But for those that take no signal or get none, which are counted."""
    for name in ("readable", "writable"):
        (tmp_path / name).mkdir()
    (tmp_path / "readable" / "file").write_text("a")
    (tmp_path / "other").write_text("b")
    places = [str(tmp_path / name) for name in ("readable", "writable", "other")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", SCRIPT, *places, deaf]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    expected = [True, False, False, False, True, False, False, True, False, False, False, True]
    times = 2 if deaf == "untold" else 3
    assert done.stdout == f"{[left, [expected] * times]}\n", done.stderr


def test_a_kernel_without_either_is_said(monkeypatch):
    from rung.engine.load import load
    from rung.server.child import sandbox
    from rung.server.protocol import Load

    def missing(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(sandbox, "close_files", missing)
    monkeypatch.setattr(sandbox, "close_system_calls", missing)
    said = sandbox.enter(Load("demo"), load("demo", device="cpu"))
    assert said.count("Function not implemented") == 2
