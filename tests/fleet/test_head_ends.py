"""A head that is killed: the same command has the fleet back, with its nodes; and one that ends takes them with it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

#: Stands for Ray's process: it starts one in a session of its own, as Ray does, whose command names no folder.
_PROCESS = """#!/bin/sh
setsid sleep 600 &
echo $! > {number}
echo runtime started
{then}
"""
_UP = ("demo", "--name", "one", "--context", "512", "--head-only")


def _chat(head, number):
    body = {"messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 32, "seed": number}
    status, content = head.ask("/v1/chat/completions", {**body, "temperature": 1})
    assert status == 200, content
    return json.loads(content)["choices"][0]["message"]["content"]


def _up(head):
    head.start("up", *_UP, "--address", head.address)


def _begin(head, node):
    """Begin a fleet with one node that computes."""
    _up(head)
    node.start("join", head.address, "--token", head.wait_for(r"--token (\S+)"), "--name", "two")
    head.wait_for("demo is ready on two")


@pytest.mark.skipif(sys.platform != "linux", reason="setsid and /proc are of Linux")
@pytest.mark.parametrize("has_ended", [True, False])
def test_what_ray_has_started_ends_also_where_ray_has_ended(monkeypatch, tmp_path, has_ended):
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("cryptography")
    from rung.fleet import head, ray_node
    from rung.fleet.keys.folder import Folder

    number, program, go_on = tmp_path / "number", tmp_path / "program", tmp_path / "go-on"
    waiting = f"while [ ! -e {go_on} ]; do sleep 0.05; done" if has_ended else "sleep 600"
    program.write_text(_PROCESS.format(number=number, then=waiting))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    folder = Folder(tmp_path / "fleet")
    head.make_keys(folder, "one", "127.0.0.1")
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    running = ray_node.RayNode(folder, "one", "127.0.0.1", {})
    try:
        running.start_head(6379)
        started = psutil.Process(int(number.read_text()))
        go_on.touch()
        while has_ended and running.watch():
            time.sleep(0.05)
        assert started.is_running()
        running.stop()
        assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE
        assert other.poll() is None
    finally:
        running.stop()
        other.kill()
        other.wait()


@pytest.mark.slow
def test_nodes_come_back_to_a_head_that_was_killed(machines):
    head, node, _ = machines
    try:
        _begin(head, node)
        before = [_chat(head, number) for number in range(3)]
        head.process.send_signal(signal.SIGKILL)  # Ray's processes stay, of which the next head knows nothing
        head.process.wait(30)
        node.wait_for("waits for it")
        _up(head)
        head.wait_for("demo is ready on two")
        assert [_chat(head, number) for number in range(3)] == before
        head.kill()
        _up(head)
        head.wait_for("demo is ready on two")
        assert [_chat(head, number) for number in range(3)] == before
        assert node.said().count("two is back in the fleet") == 2
        assert head.rung("fleet", "down").returncode == 0
        assert node.process.wait(60) == 0
        assert head.process.wait(60) == 0
        assert "The fleet has ended." in node.said()
        assert not (head.folder / head.namespace).exists()
        until = time.monotonic() + 30
        while node.processes():
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        node.stop()
        head.stop()


@pytest.mark.slow
def test_a_head_whose_ray_has_ended_says_so_and_the_same_command_goes_on(machines):
    head, node, _ = machines
    try:
        _begin(head, node)
        before = _chat(head, 1)
        (server,) = head.processes_named("gcs_server")
        os.kill(server, signal.SIGKILL)
        assert head.process.wait(60) != 0
        assert "Ray's own head on this machine has ended" in head.said()
        assert "the same rung fleet up has it back" in head.said()
        _up(head)
        head.wait_for("demo is ready on two")
        assert _chat(head, 1) == before
        node.stop()
        head.stop()
        assert head.process.poll() == 0, head.said()  # it ended by itself, and took everything with it
        assert head.processes() == node.processes() == []
    finally:
        node.stop()
        head.stop()
