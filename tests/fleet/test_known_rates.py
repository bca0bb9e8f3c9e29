"""How fast nodes are taken to be: what an earlier run left, or a second measurement once nothing else begins there."""

from __future__ import annotations

import asyncio
import functools

import pytest

pytest.importorskip("ray")

from rung.fleet.deployments import Deployment, Speeds, keep
from rung.fleet.messages import RatesReport, ReplicaState
from rung.fleet.router import Job, Node, Rates
from rung.server.protocol import Load, ModelInfo

_SLOW, _FAST = RatesReport(400.0, 20.0, 40.0), RatesReport(800.0, 40.0, 80.0)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Speeds by a measurement that finds a node slow at first and fast later; and what was measured."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    found = []

    async def measure(deployment, model, node):
        found.append(node)
        return _SLOW if len(found) == 1 else _FAST

    return functools.partial(Speeds, measure, 0.0), found


def _state(process=1, parallel=4):
    model = ModelInfo("demo", "stored", ["cpu"], 512, parallel, 512, 1, True, True, "", "", True, "")
    return ReplicaState("id", process, model)


async def _rates(speeds, deployment, state, name="one", is_divided=False):
    while (found := speeds.of(deployment, state, name, is_divided)) is None:
        await asyncio.sleep(0)
    return found


def _deployment(device_class="cpu-x"):
    return Deployment("demo", device_class, Load("demo", {}), [], None)


def test_the_next_run_begins_with_what_answers_said_in_this_one(measured):
    (speeds_of, found), deployment, state = measured, _deployment(), _state()

    async def run():
        assert await _rates(speeds_of(), deployment, state) == _SLOW
        keep(deployment, "one", state.model, _SLOW, 3.0)
        later = await _rates(speeds_of(), deployment, _state(process=2))
        assert (later.prefill, later.decode, later.decode_sum) == (800.0, 40.0, 80.0)  # between 1 and 3 times as fast
        assert found == ["id"]

    asyncio.run(run())


@pytest.mark.parametrize("other", ["name", "class", "room", "divided"])
def test_rates_of_something_else_are_not_taken(measured, other):
    async def run():
        speeds_of, found = measured
        await _rates(speeds_of(), _deployment(), _state())
        deployment = _deployment("cpu-y" if other == "class" else "cpu-x")
        state = _state(parallel=8 if other == "room" else 4)
        await _rates(speeds_of(), deployment, state, "two" if other == "name" else "one", other == "divided")
        assert len(found) == 2

    asyncio.run(run())


def test_a_node_that_is_idle_is_measured_again_and_one_that_computes_is_not(measured):
    (speeds_of, found), deployment, state = measured, _deployment(), _state()

    async def run():
        speeds, node = speeds_of(), Node("id", 4, Rates(400.0, 20.0, 40.0))
        assert await _rates(speeds, deployment, state) == _SLOW
        job = Job(1, "", 10, 10)
        node.start(job, 0.0)
        for _ in range(20):
            assert speeds.again(deployment, state, node) is None
            await asyncio.sleep(0)
        assert len(found) == 1
        node.end(job, 0.5)
        said = []
        for _ in range(20):
            said.append(speeds.again(deployment, state, node))
            await asyncio.sleep(0)
        assert [each for each in said if each is not None] == [_FAST]
        assert len(found) == 2

    asyncio.run(run())
