"""An encoder of a fleet: commands hold it, and what its compiled encoders failed once is checked again."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("ray")

from rung import formats
from rung.fleet.work.pieces import Encoder, Order
from rung.kernels.cpu import target
from rung.run.self_check import encoders

_LONG = 1e9


@pytest.fixture
def encoder():
    found = Encoder()
    found.hold("this test", _LONG)  # it ends its process else, which is this one
    return found


@pytest.fixture
def checked(monkeypatch):
    """The formats that are checked: the first time all fail."""
    found = []

    def prove(several, say):
        found.append({each.name for each in several})
        if len(found) == 1:
            say("no time")
            return frozenset()
        return frozenset(map(formats.get, found[-1]))

    monkeypatch.setattr(encoders, "prove", prove)
    return found


def test_an_encoder_rests_when_all_commands_have_ended():
    encoder = Encoder()
    encoder.hold("one", _LONG)
    encoder.hold("two", _LONG)
    assert encoder.rest() == 0.0
    encoder.hold("one", 0.0)
    assert encoder.rest() == 0.0
    encoder.hold("two", 0.0)
    assert encoder.rest() > 0.0
    encoder.hold("three", _LONG)
    assert encoder.rest() == 0.0


def test_a_check_that_failed_is_made_again_by_the_next_command_and_said(encoder, checked):
    assert encoder.do(Order("one", [], ["q8_0"])).notes == ["no time"]
    assert encoder.do(Order("one", [], ["q8_0"])).notes == []
    assert checked == [{"q8_0"}]
    for _ in range(2):
        assert encoder.do(Order("two", [], ["q8_0"])).notes == []
    assert checked == [{"q8_0"}, {"q8_0"}]


def test_at_another_level_all_are_checked_again(encoder, checked, monkeypatch):
    for names in (["q4_k"], ["q8_0"], ["q8_0"]):
        encoder.do(Order(f"of {names}", [], names))
    monkeypatch.setattr(target, "level", lambda: types.SimpleNamespace(name="another"))
    encoder.do(Order("last", [], ["q8_0"]))
    assert checked == [{"q4_k"}, {"q8_0"}, {"q8_0"}]
