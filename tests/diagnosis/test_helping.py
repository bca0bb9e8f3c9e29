"""How likely fixes help: what was learned, and that the tables name what is there."""

import json
import math
from pathlib import Path

import pytest

from rung.diagnosis import helping
from rung.diagnosis.explain import explain, rules_of, scene
from rung.diagnosis.fixing import causes, order_of
from rung.diagnosis.helping import Helping
from rung.diagnosis.wording import wordings
from rung.diagnosis.words import weighed, words_of

BREADTH = Path(__file__).parents[1] / "data" / "explain_breadth.jsonl"


def test_words_cause_and_place_are_added(monkeypatch):
    rows = {"word": "0:3 1:-3", "@dtype-mix": "1:0.5", "@place": "0:1 1:-1 5:-2"}
    monkeypatch.setattr(helping, "_table", lambda: (("use-fp32", "cast-to-match", "use-cpu"), rows))
    found = Helping({"word", "unheard"}).chances("dtype-mix", ["cast-to-match", "use-fp32"])
    share = 1 / math.sqrt(1 + 4)
    assert found["use-fp32"] == pytest.approx(1 / (1 + math.exp(-(3 * share - 1))))
    assert found["cast-to-match"] == pytest.approx(1 / (1 + math.exp(-(-3 * share + 0.5 + 1))))
    assert found["use-cpu"] == pytest.approx(1 / (1 + math.exp(2))), "named by no order, likely enough to be told"


def test_what_no_order_names_and_hardly_helps_is_not_told(monkeypatch):
    monkeypatch.setattr(helping, "_table", lambda: (("use-fp32", "use-cpu"), {"@place": "0:-9 5:-3"}))
    assert set(Helping(()).chances("dtype-mix", ["use-fp32"])) == {"use-fp32"}


def test_the_table_names_what_is_there():
    labels, rows = helping._table()
    assert set(labels) == {row.label for row in wordings()}
    assert {key[1:] for key in rows if key.startswith("@")} == {*causes(), "place"}
    assert all(0 <= place < len(labels) for key, row in rows.items() if key != "@place" for place, _ in weighed(row))
    assert {place for place, _ in weighed(rows["@place"])} == set(range(helping.PLACES))


@pytest.mark.parametrize("cause", causes())
def test_a_log_of_which_nothing_is_known_has_the_fixes_of_the_cause(cause):
    found = scene([b"xyzzyplugh"], {})
    order = order_of(cause, found)
    chances = Helping(words_of(found, rules_of(found))).chances(cause, order)
    assert set(order) <= set(chances)
    assert all(0 < chance < 1 for chance in chances.values())


def test_where_the_cause_is_right_so_is_a_fix():
    rows = [json.loads(line) for line in BREADTH.read_text().splitlines()][::25]
    answers = [(row, explain(row["log"], row["environment"])) for row in rows if row["cause"]]
    right = [any(fix.label in row["fixes"] for fix in a.fixes[:2]) for row, a in answers if a.cause == row["cause"]]
    assert sum(right) >= 0.9 * len(right)
