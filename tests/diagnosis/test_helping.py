"""How likely fixes help: what was learned, and that the tables name what is there."""

import math
from pathlib import Path

import pytest

from rung.diagnosis.explain import rules_of, scene
from rung.diagnosis.fixes import fixing
from rung.diagnosis.fixes.fixing import Helping, causes
from rung.diagnosis.fixes.wording import wordings
from rung.diagnosis.model import weighed, words_of

BREADTH = Path(__file__).parents[1] / "data" / "explain_breadth.jsonl"


def test_words_and_cause_are_added(monkeypatch):
    rows = {"word": "0:3 1:-3", "@dtype-mix": "1:0.5 2:-2"}
    monkeypatch.setattr(fixing, "fix_table", lambda: (("use-fp32", "cast-to-match", "use-cpu"), rows))
    found = Helping({"word", "unheard"}).chances("dtype-mix", ["cast-to-match", "use-fp32"])
    share = 1 / math.sqrt(1 + 4)
    assert found["use-fp32"] == pytest.approx(1 / (1 + math.exp(-3 * share)))
    assert found["cast-to-match"] == pytest.approx(1 / (1 + math.exp(-(-3 * share + 0.5))))
    assert found["use-cpu"] == pytest.approx(1 / (1 + math.exp(2))), "not usual, likely enough to be told"


def test_what_is_not_usual_and_hardly_helps_is_not_told(monkeypatch):
    monkeypatch.setattr(fixing, "fix_table", lambda: (("use-fp32", "use-cpu"), {"@dtype-mix": "0:-9 1:-3"}))
    assert set(Helping(()).chances("dtype-mix", ["use-fp32"])) == {"use-fp32"}


def test_the_table_names_what_is_there():
    labels, rows = fixing.fix_table()
    assert set(labels) == {row.label for row in wordings()}
    assert {key[1:] for key in rows if key.startswith("@")} == set(causes())
    assert all(0 <= index < len(labels) for row in rows.values() for index, _ in weighed(row))


@pytest.mark.parametrize("cause", causes())
def test_a_log_of_which_nothing_is_known_has_the_fixes_of_the_cause(cause):
    found = scene([b"xyzzyplugh"], {})
    chances = Helping(words_of(found, rules_of(found))).chances(cause, causes()[cause].fixes)
    assert set(causes()[cause].fixes) <= set(chances)
    assert all(0 < chance < 1 for chance in chances.values())
