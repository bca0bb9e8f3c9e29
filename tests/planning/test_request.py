"""Budgets as people type them: what is unclear is refused with the right spelling, in every place that takes one."""

from __future__ import annotations

import pytest

import rung as library
from rung.core.errors import UsageError
from rung.core.value import FrozenDict
from rung.planning.request import parse_memory

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


@pytest.mark.parametrize(("given", "meant"), REFUSED.items())
def test_what_is_unclear_is_refused_with_a_spelling_that_is_taken(given, meant):
    with pytest.raises(UsageError) as refused:
        parse_memory(given)
    assert refused.value.ways_out == (meant,)
    assert parse_memory(meant.removeprefix("--memory "))


@pytest.mark.parametrize("given", ["4GB,5GB", "cpu=4GB,cpu=5GB"])
def test_two_budgets_of_one_device_are_refused(given):
    with pytest.raises(UsageError, match="two budgets"):
        parse_memory(given)


@pytest.mark.parametrize("given", [4, 4.6, True, {"cpu": 3}, {"cpu": "4,6GB"}, {"cpu": None}, [GB]])
def test_values_of_python_that_are_no_budget(given):
    with pytest.raises(UsageError, match="--memory"):
        parse_memory(given)


@pytest.mark.parametrize(
    ("given", "budgets"),
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
def test_what_is_a_budget(given, budgets):
    assert parse_memory(given) == FrozenDict(budgets)


@pytest.mark.parametrize("call", [library.check, library.plan, library.load])
def test_functions_refuse_it_alike(call):
    with pytest.raises(UsageError, match=r"4\.6 what"):
        call("demo", memory="4.6")
