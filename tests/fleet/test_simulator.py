"""The simulator against what can be worked out by hand."""

from __future__ import annotations

import pytest

from rung.fleet.router import Rates
from rung.fleet.simulator import Request, SimulatedNode, Simulation, burst, poisson


def test_one_request_takes_what_its_node_says():
    node = SimulatedNode("n", 4, Rates(100.0, 10.0, 20.0))
    found = Simulation([node]).run([Request(1.0, 50, 30)])
    assert found.first_token_p95 == pytest.approx(50 / 100)
    assert found.finish_p95 == pytest.approx(50 / 100 + 30 / 10)


def test_answers_share_what_a_node_gives_together():
    node = SimulatedNode("n", 4, Rates(1e9, 10.0, 20.0))
    found = Simulation([node]).run(burst(4, 1, 30))
    assert found.seconds == pytest.approx(4 * 30 / 20, rel=1e-3)
    assert found.utilization == pytest.approx(1.0)


def test_one_slot_serves_one_after_the_other():
    node = SimulatedNode("n", 1, Rates(1e9, 10.0, 20.0))
    found = Simulation([node]).run(burst(3, 1, 30))
    assert found.seconds == pytest.approx(3 * 30 / 10, rel=1e-3)
    assert found.most_waiting == 2


def test_unlike_nodes_reach_nine_tenths_of_their_sum():
    nodes = [SimulatedNode(f"n{k}", 4, Rates(1000.0 * k, 20.0 * k, 40.0 * k)) for k in (1, 2, 4)]
    found = Simulation(nodes).run(burst(64, 20, 64))
    assert 0.9 * 280 <= found.tokens_per_second <= 280


def test_a_node_that_says_too_much_costs_less_than_its_share():
    nodes = [
        SimulatedNode("true", 4, Rates(1000.0, 20.0, 40.0)),
        SimulatedNode("slow", 4, Rates(4000.0, 80.0, 160.0), real=Rates(100.0, 2.0, 4.0)),
    ]
    found = Simulation(nodes).run(burst(40, 20, 64))
    alone = Simulation(nodes[:1]).run(burst(40, 20, 64))
    assert found.seconds < 1.3 * alone.seconds


def test_a_light_load_waits_for_nobody_and_an_overload_queues():
    nodes = [SimulatedNode(f"n{k}", 4, Rates(1000.0, 20.0, 40.0)) for k in range(10)]
    light = Simulation(nodes).run(poisson(0.5, 100, 20, 60))
    assert light.first_token_p95 < 0.2
    assert light.utilization < 0.6
    heavy = Simulation(nodes).run(poisson(20, 20, 20, 60))
    assert heavy.tokens_per_second > 0.9 * 400
    assert heavy.most_waiting > 50


def test_thousands_of_nodes():
    nodes = [SimulatedNode(f"n{k}", 4, Rates(1000.0, 20.0, 40.0)) for k in range(2000)]
    found = Simulation(nodes).run(poisson(300, 4, 20, 60))
    assert found.first_token_p95 < 0.3


def test_a_trace_without_requests_is_refused():
    with pytest.raises(ValueError, match="requests"):
        Simulation([SimulatedNode("n", 1, Rates(1.0, 1.0, 1.0))]).run([])


def test_what_a_first_token_takes_beside_its_prompt_is_computed_too():
    node = SimulatedNode("n", 1, Rates(100.0, 10.0, 20.0, latency=0.5))
    found = Simulation([node]).run(burst(2, 50, 30))
    assert found.first_token_median == pytest.approx(2 * (0.5 + 50 / 100) + 30 / 10)  # the second of two
    assert found.seconds == pytest.approx(2 * (0.5 + 50 / 100 + 30 / 10))
    both = Simulation([SimulatedNode("n", 2, Rates(100.0, 10.0, 20.0, latency=0.5))]).run(burst(2, 50, 30))
    assert both.first_token_p95 == pytest.approx(2 * (0.5 + 50 / 100))  # they share the node
