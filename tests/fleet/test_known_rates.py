"""How fast nodes are taken to be: what an earlier run left, or a second measurement once nothing else begins there."""

from __future__ import annotations

import asyncio
import functools
import math

import pytest

pytest.importorskip("ray")

from rung.fleet.deployments import Deployment, Speeds, keep
from rung.fleet.messages import RatesReport, ReplicaState
from rung.fleet.router import Node, Rates
from rung.hardware import json_cache
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

    async def rest(node):
        return math.inf

    return functools.partial(Speeds, measure, 0.0, rest), found


def _state(process=1, parallel=4):
    model = ModelInfo("demo", "stored", ["cpu"], 512, parallel, 512, 1, True, True, "", "", True, "")
    return ReplicaState("id", process, model)


async def _rates(speeds, deployment, state, name="one", is_divided=False):
    while (found := speeds.of(deployment, state, name, is_divided)) is None:
        await asyncio.sleep(0)
    return found


def _deployment(device_class="cpu-x"):
    return Deployment("demo", device_class, Load("demo", {}), [], None)


async def _said(speeds, deployment, state, node, is_idle=True):
    """Return the notes about a second measurement in some looks at a node."""
    said = []
    for _ in range(30):
        said.append(speeds.again(deployment, state, "one", node, is_idle))
        await asyncio.sleep(0)
    return [each for each in said if each is not None]


def _node():
    return Node("id", 4, Rates(400.0, 20.0, 40.0))


@pytest.mark.parametrize("kept", [{"prefill": "fast"}, [1.0], "text"])
def test_what_is_kept_and_is_no_rates_is_measured_anew(measured, kept):
    (speeds_of, found), deployment, state = measured, _deployment(), _state()
    json_cache.write(deployment.key("one", state.model), kept)

    async def run():
        assert await _rates(speeds_of(), deployment, state) == _SLOW
        keep(deployment, "one", state.model, _SLOW, 1.0)
        assert found == ["id"]

    asyncio.run(asyncio.wait_for(run(), 10))


def test_the_next_run_begins_with_what_answers_said_in_this_one(measured):
    (speeds_of, found), deployment, state = measured, _deployment(), _state()

    async def run():
        assert await _rates(speeds_of(), deployment, state) == _SLOW
        keep(deployment, "one", state.model, _SLOW, 3.0)
        later = await _rates(speeds_of(), deployment, _state(process=2))
        assert (later.prefill, later.decode, later.decode_sum) == (800.0, 40.0, 80.0)  # between 1 and 3 times as fast
        assert found == ["id"]

    asyncio.run(run())


def test_another_process_of_the_same_run_begins_with_what_the_first_one_was_measured_at(measured):
    (speeds_of, found), deployment = measured, _deployment()

    async def run():
        speeds = speeds_of()
        for process in (1, 2):
            assert await _rates(speeds, deployment, _state(process=process)) == _SLOW
        assert len(found) == 1

    asyncio.run(run())


def test_a_first_measurement_is_not_kept_and_a_second_one_is_and_is_checked_in_the_next_run(measured):
    (speeds_of, found), deployment = measured, _deployment()

    async def run():
        assert await _rates(speeds_of(), deployment, _state()) == _SLOW
        speeds = speeds_of()
        assert await _rates(speeds, deployment, _state(process=2)) == _FAST  # measured: nothing was kept
        assert await _said(speeds, deployment, _state(process=2), _node()) == [_FAST]
        assert len(found) == 3
        keep(deployment, "one", _state().model, _SLOW, 0.5)
        speeds = speeds_of()
        assert (await _rates(speeds, deployment, _state(process=3))).decode < 30.0
        assert len(found) == 3
        assert await _said(speeds, deployment, _state(process=3), _node()) == [_FAST]
        assert await _rates(speeds, deployment, _state(process=3)) == _FAST
        assert await _rates(speeds_of(), deployment, _state(process=4)) == _FAST

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
        speeds, node = speeds_of(), _node()
        assert await _rates(speeds, deployment, state) == _SLOW
        assert await _said(speeds, deployment, state, node, is_idle=False) == []
        assert len(found) == 1
        assert await _said(speeds, deployment, state, node) == [_FAST]
        assert len(found) == 2

    asyncio.run(run())


def test_a_node_has_one_measurement_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    under_way, most = [], []

    async def measure(deployment, model, node):
        under_way.append(node)
        most.append(max(map(under_way.count, under_way)))
        await asyncio.sleep(0.01)
        under_way.remove(node)
        return _SLOW

    async def rest(node):
        return math.inf

    async def run():
        speeds = Speeds(measure, 0.0, rest)
        several = [Deployment(name, "cpu-x", Load(name, {}), [], None) for name in ("a", "b", "c")]
        found = set()
        while len(found) < 3:
            found |= {each.model for each in several if speeds.of(each, _state(), "one", False) is not None}
            await asyncio.sleep(0)
        again = set()
        while len(again) < 3:
            again |= {each.model for each in several if speeds.again(each, _state(), "one", _node(), True) is not None}
            await asyncio.sleep(0)

    asyncio.run(run())
    assert len(most) == 6
    assert max(most) == 1


@pytest.mark.parametrize(("before", "after"), [(0.0, math.inf), (math.inf, 0.0)])
def test_what_was_measured_beside_an_encoder_does_not_count(monkeypatch, tmp_path, before, after):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    found = []

    async def measure(deployment, model, node):
        found.append(node)
        return _SLOW

    async def rest(node):
        return after if len(found) > 1 else before

    async def run():
        speeds = Speeds(measure, 1e-9, rest)
        await _rates(speeds, _deployment(), _state())
        assert await _said(speeds, _deployment(), _state(), _node()) == []

    asyncio.run(run())
    assert len(found) == 1 if before == 0.0 else len(found) > 1
