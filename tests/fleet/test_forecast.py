"""Compare ``rung check --fleet`` with ``rung check`` of each device."""

from __future__ import annotations

import pytest

pytest.importorskip("msgspec")

from rung.core.errors import UsageError
from rung.engine.checking import check_model
from rung.fleet import forecast
from rung.fleet.messages import FleetStatus, ModelStatus, NodeReport, NodeStatus, RatesReport, Versions
from rung.planning.check_result import Question
from rung.planning.request import parse_memory
from tests.cli.conftest import rung  # noqa: F401 - a fixture

NODES = '[[nodes]]\ndevice = "rtx 3060"\ncount = 2\n\n[[nodes]]\ndevice = "i5-8250u"\nname = "laptop"\n'


@pytest.fixture
def nodes(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text(NODES)
    return path


def test_each_kind_does_what_check_says_of_its_device(nodes):
    found = forecast.forecast("gemma-2b", forecast.read(nodes), Question())
    for part in found.parts:
        alone = check_model("gemma-2b", part.kind.device)
        best = alone.choices[alone.best]
        assert part.format == best.format
        assert part.rates.decode == best.speed.decode_tokens_per_second
        assert part.rates.decode_sum <= max(best.speed.prefill_tokens_per_second, part.rates.decode)
    assert found.together == sum(part.rates.decode_sum * part.kind.count for part in found.parts)
    assert 0 < found.at_once.tokens_per_second <= found.together
    assert found.steady.first_token_p95 < found.at_once.finish_p95


def test_a_model_that_no_node_holds_says_why(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text('[[nodes]]\ndevice = "p2200"\n')
    found = forecast.forecast("llama-3.1-70b", forecast.read(path), Question())
    assert found.together == 0
    assert found.parts[0].reason
    assert found.at_once is None


def test_nodes_of_one_name_are_so_many_nodes(tmp_path):
    question = Question(context=512, batch=1024, memory=parse_memory("650MB"), cache_type="f16")
    found = []
    for number, text in enumerate(
        (2 * '[[nodes]]\ndevice = "i5-8250u"\n', '[[nodes]]\ndevice = "i5-8250u"\ncount = 2\n')
    ):
        path = tmp_path / f"nodes{number}.toml"
        path.write_text(text)
        found.append(forecast.forecast("demo", forecast.read(path), question))
    assert [part.layers for part in found[0].parts] == [part.layers for part in found[1].parts]
    assert found[0].parts[1].layers


def test_more_nodes_than_layers_hold_what_they_would_without_the_rest(tmp_path):
    question = Question(context=512, batch=1024, memory=parse_memory("650MB"), cache_type="f16")
    found = []
    for count in (3, 40):
        path = tmp_path / f"nodes{count}.toml"
        path.write_text(f'[[nodes]]\ndevice = "i5-8250u"\ncount = {count}\n')
        found.append(forecast.forecast("demo", forecast.read(path), question))
    assert [part.layers for part in found[0].parts] == [part.layers for part in found[1].parts] != [""]


def test_a_model_that_no_node_holds_alone_is_divided(tmp_path, rung):  # noqa: F811
    path = tmp_path / "nodes.toml"
    path.write_text('[[nodes]]\ndevice = "i5-8250u"\ncount = 3\nname = "laptops"\n')
    budget = parse_memory("650MB")
    question = Question(context=512, batch=1024, memory=budget, cache_type="f16")
    found = forecast.forecast("demo", forecast.read(path), question)
    words = [part.layers.split() for part in found.parts]
    assert [int(each[1]) for each in words] == [0, int(words[0][3]) + 1]  # two of the three hold it
    assert max(part.memory for part in found.parts) <= budget["*"]
    assert found.together == found.parts[0].rates.decode_sum > 0
    assert found.at_once.tokens_per_second > 0
    options = ("--context", "512", "--batch", "1024", "--memory", "650MB", "--cache-type", "f16")
    said = rung("check", "demo", "--fleet", str(path), *options)
    assert said.code == 0
    assert "no node holds it alone; divided" in said.out
    assert "laptops 1: layers 0 to" in said.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes = 3", "names no nodes"),
        ("[[nodes]]\ncount = 1", "has no device"),
        ('[[nodes]]\ndevice = "cpu"\ncount = 0', "no number of nodes"),
        ('[[nodes]]\ndevice = "cpu"\ncount = true', "no number of nodes"),
        ('[[nodes]]\ndevice = "cpu"\ncuont = 2', "cuont"),
        ('[[nodes]]\ndevice = "cpu"\nname = 3', "no text"),
        ("[[", "no TOML"),
        ('[[nodes]]\ndevice = "cpu"\ncount = 9999\n[[nodes]]\ndevice = "cpu"\ncount = 9999', "simulated at most"),
    ],
)
def test_a_bad_file_is_refused_with_where_it_is_bad(tmp_path, text, words):
    path = tmp_path / "nodes.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        forecast.read(path)


def test_a_running_fleet_counts_as_it_measured_itself():
    def node(name: str, rates: RatesReport | None, speed: float = 1.0) -> NodeStatus:
        model = ModelStatus("demo", "ready" if rates else "no room", "q8_0", 1, 512, 4, 0, rates, speed)
        return NodeStatus(NodeReport(name, "10.0.0.1", "cpu-x", 2, []), "up", [model])

    rates = RatesReport(100.0, 10.0, 30.0)
    versions = Versions("3.11", "2.60.0", "0.2.0")
    status = FleetStatus("", "", versions, [node("a", rates), node("b", rates, 0.5), node("c", None)], 0)
    found = forecast.live(status, "demo")
    assert found.together == 45.0
    assert [part.reason for part in found.parts] == ["", "", "no room"]


def test_on_the_command_line(rung, nodes):  # noqa: F811
    said = rung("check", "gemma-2b", "--fleet", str(nodes))
    assert said.code == 0
    assert "3 of 3 nodes run it" in said.out
    assert "2 x rtx 3060" in said.out
    assert rung("check", "gemma-2b", "--fleet", str(nodes), "--device", "cpu").code == 2
    assert rung("check", "--fleet", str(nodes)).code == 2
