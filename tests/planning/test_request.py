"""Budgets as people type them: what is unclear is refused with the right spelling, in every place that takes one."""

from __future__ import annotations

import pytest

import rung as library
from rung.core.errors import UsageError
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.planning.request import Request, above_memory, parse_memory

GB = 2**30
REFUSED = {
    "4,6GB": "--memory 4.6GB",
    "4,6 gb": "--memory 4.6GB",
    "4.6": "--memory 4.6GB",
    "8": "--memory 8GB",
    "4.6 gigs": "--memory 4.6GB",
    "1,024MB": "--memory 1024MB",
    "cuda:0=4,6GB": "--memory cuda:0=4.6GB",
    "4,6 GB,cpu=8GB": "--memory 4.6GB",
    "cuda:0=4GB,cpu=8": "--memory cpu=8GB",
    "0GB": "--memory 4.6GB",
    "-1GB": "--memory 1GB",
    "lots": "--memory 4.6GB",
    "": "--memory 4.6GB",
}


@pytest.mark.parametrize(("text", "meant"), REFUSED.items())
def test_what_is_unclear_is_refused_with_a_spelling_that_is_taken(text, meant):
    with pytest.raises(UsageError) as refused:
        parse_memory(text)
    assert refused.value.ways_out == (meant,)
    assert parse_memory(meant.removeprefix("--memory "))


@pytest.mark.parametrize("text", ["4GB,5GB", "cpu=4GB,cpu=5GB"])
def test_two_budgets_of_one_device_are_refused(text):
    with pytest.raises(UsageError, match="two budgets"):
        parse_memory(text)


@pytest.mark.parametrize("value", [4, 4.6, True, {"cpu": 3}, {"cpu": "4,6GB"}, {"cpu": None}, [GB]])
def test_values_of_python_that_are_no_budget(value):
    with pytest.raises(UsageError, match="--memory"):
        parse_memory(value)


@pytest.mark.parametrize(
    ("value", "budgets"),
    [
        ("4.5GB", {"*": 9 * GB // 2}),
        ("4.5 GiB", {"*": 9 * GB // 2}),
        (".5g", {"*": GB // 2}),
        ("5000000000", {"*": 5 * 10**9}),
        (GB, {"*": GB}),
        ("cuda:0=4GB,cpu=8GB", {"cuda:0": 4 * GB, "cpu": 8 * GB}),
        ({"cpu": "8GB", "cuda:0": GB}, {"cpu": 8 * GB, "cuda:0": GB}),
        (None, {}),
    ],
)
def test_what_is_a_budget(value, budgets):
    assert parse_memory(value) == FrozenDict(budgets)


@pytest.mark.parametrize("call", [library.check, library.plan, library.load])
def test_functions_refuse_it_alike(call):
    with pytest.raises(UsageError, match=r"4\.6 what"):
        call("demo", memory="4.6")


def test_a_budget_above_what_a_device_has_is_said_and_what_it_has_is_counted():
    small, large = catalog.device("p2200"), catalog.device("4090")
    said = above_memory(parse_memory("20GB"), [small, large, small])
    assert said == "Quadro P2200 has less than --memory 20.0 GB: 4.9 GB is counted there."
    assert Request(memory=parse_memory("20GB")).budget(small) == small.budget
    assert Request(memory=parse_memory("20GB")).budget(large) == 20 * GB
    assert above_memory(parse_memory({small.id: "4GB", large.id: "20GB"}), [small, large]) == ""
    assert above_memory(parse_memory(None), [small]) == ""
