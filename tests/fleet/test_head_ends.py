"""A head that is killed: the same command has the fleet back, with its nodes; and one that ends takes them with it."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

_UP = ("demo", "--name", "one", "--context", "512", "--head-only")


def _chat(head, number):
    body = {"messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 32, "seed": number}
    status, content = head.ask("/v1/chat/completions", {**body, "temperature": 1})
    assert status == 200, content
    return json.loads(content)["choices"][0]["message"]["content"]


def _up(head):
    head.said_file.unlink(missing_ok=True)
    head.start("up", *_UP, "--address", head.address)


@pytest.mark.slow
def test_nodes_come_back_to_a_head_that_was_killed(machines):
    head, node, _ = machines
    try:
        _up(head)
        node.said_file.unlink(missing_ok=True)
        node.start("join", head.address, "--token", head.wait_for(r"--token (\S+)"), "--name", "two")
        head.wait_for("demo is ready on two")
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
        _up(head)
        node.said_file.unlink(missing_ok=True)
        node.start("join", head.address, "--token", head.wait_for(r"--token (\S+)"), "--name", "two")
        head.wait_for("demo is ready on two")
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
