"""Test the question before a model is fetched, and the meaning of the Enter key alone."""

from __future__ import annotations

import io
import sys

import pytest

from rung.cli import fetching
from rung.models.store.starters import starters


@pytest.mark.parametrize(
    ("typed", "enter", "yes"),
    [("\n", True, True), ("\n", False, False), ("y\n", False, True), ("n\n", True, False), ("", True, False)],
)
def test_enter_fetches_and_accepts_no_terms(monkeypatch, typed, enter, yes):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert fetching.ask("Well?", enter=enter) is yes


def test_terms_are_not_accepted_by_enter_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    monkeypatch.setattr(fetching, "on_terminal", lambda: True)
    terms = starters()["gemma3-270m"].terms
    assert fetching.accept_terms(terms, False) is False


def test_pull_asks_on_a_terminal_and_fetches_nothing_after_a_no(rung, monkeypatch):
    monkeypatch.setattr(fetching, "on_terminal", lambda: True)
    monkeypatch.setattr(fetching, "offer", lambda starter: False)
    monkeypatch.setattr(fetching, "fetch", lambda *arguments, **more: pytest.fail("it was fetched"))
    shown = rung("pull", "smollm2")
    assert shown.code == 1
    assert "rung pull smollm2 --yes" in shown.err
