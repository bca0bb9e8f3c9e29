"""A model that no node holds alone, over two nodes: the bytes of one machine, and a part that is lost."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rung.core.errors import DoesNotFit
from rung.engine.load import load
from rung.engine.open_model import open_any
from rung.fleet.work.stages import divide
from rung.hardware import detect
from rung.models.lookup import find_path

#: So many sequences that their cache does not fit beside all layers within the budget.
OPTIONS = {"context": 512, "parallel": 1024, "threads": 1, "memory": "650MB", "cache_type": "f16"}


def test_layers_go_where_there_is_room_and_no_part_is_larger_than_its_node():
    card = open_any(find_path("demo"))
    (device,) = [each for each in detect.devices() if each.kind == "cpu"]
    found = divide(card, {"a": device, "b": device, "c": device}, OPTIONS)
    assert len(found.parts) == 2  # as few as hold it
    assert [part.first for part in found.parts] == [0, found.parts[0].last]
    assert found.parts[-1].last == len(card.decoder.layers)
    assert all(part.memory <= 650 * 2**20 for part in found.parts)
    small = replace(device, memory=300 * 2**20, free=300 * 2**20)  # which holds no layer
    assert divide(card, {"a": device, "small": small, "b": device}, OPTIONS) == divide(
        card, {"a": device, "b": device}, OPTIONS
    )
    with pytest.raises(DoesNotFit, match="1 nodes together"):
        divide(card, {"a": device}, OPTIONS)
    with pytest.raises(DoesNotFit, match="nodes together"):
        divide(card, {"a": device, "b": device}, {**OPTIONS, "memory": "300MB"})


def _chat(number):
    messages = [{"role": "user", "content": f"number {number}"}]
    return {"messages": messages, "max_tokens": 40, "seed": number, "temperature": 1}


def _texts(head, numbers):
    answers = head.ask_all([_chat(number) for number in numbers])
    assert all(each["status"] == 200 for each in answers), (answers, head.said())
    return [json.loads(each["content"])["choices"][0]["message"]["content"] for each in answers]


def _hosts(machine):
    """The processes that have further layers on a machine."""
    return [pid for pid in machine.processes() if _command(pid).startswith(b"ray::StageHost")]


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def divided(machines):
    """A head and a node that have the demo together, and a third machine, which may join by the token."""
    head, node, third = machines
    try:
        options = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        head.start("up", "demo", "--address", head.address, "--name", "one", *options)
        token = head.wait_for(r"--token (\S+)")
        node.start("join", head.address, "--token", token, "--name", "two")
        head.wait_for("demo is ready on")
        assert "demo fits on no node alone: layers 0 to" in head.said()
        yield head, node, third
    finally:
        third.stop()
        node.stop()
        head.stop()


@pytest.fixture(scope="module")
def whole():
    """The texts that one machine gives."""
    model = load("demo", device="cpu", context=512)
    return ["".join(model.chat(_chat(k)["messages"], max_tokens=40, seed=k, temperature=1)) for k in range(12)]


@pytest.mark.slow
def test_a_model_over_two_nodes_gives_the_bytes_of_one_and_lives_through_a_lost_part(divided, whole):
    head, node, _ = divided
    assert _texts(head, range(12)) == whole
    shown = head.rung("fleet", "status").stdout
    assert shown.count(", layers ") == 2, shown
    assert json.loads(head.rung("fleet", "status", "--json").stdout)["failures"] == []  # it is divided as it should be
    (victim,) = _hosts(node) + _hosts(head)
    os.kill(victim, signal.SIGKILL)
    assert _texts(head, range(12)) == whole  # computed again, by new processes
    assert victim not in _hosts(node) + _hosts(head)
    status, said = head.ask("/slots/0?action=save", {"filename": "x"})
    assert (status, "--slot-save-path" in said) == (403, True)


@pytest.mark.slow
def test_a_node_with_a_part_leaves_when_answers_have_ended_and_another_one_has_its_layers(divided, whole):
    head, node, third = divided
    third.start("join", head.address, "--token", head.rung("fleet", "token").stdout.strip(), "--name", "three")
    third.wait_for("three is in the fleet")
    many = [*range(12)] * 4
    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(_texts, head, many)
        while "0 of 1024" in head.rung("fleet", "status").stdout:
            assert not answers.done()
        left = node.rung("fleet", "leave", seconds=120)
        assert left.returncode == 0, left.stderr
        assert answers.result() == [whole[k] for k in many]
    assert node.process.wait(30) == 0
    head.wait_for("(?s)demo is ready on.*demo is ready on")
    assert _texts(head, range(12)) == whole
    shown = head.rung("fleet", "status").stdout
    assert shown.count(", layers ") == 2, shown
    assert "two  up" not in shown
    assert head.said().count("demo fits on no node alone") == 2  # at first, and once more
    assert not _hosts(node)
