"""Every rule applies to a case of its own, and to no empty log."""

import json
from pathlib import Path

import pytest

from rung.diagnosis.explain import explain
from rung.diagnosis.explain import scene as scene_of
from rung.diagnosis.rules import RULES

DATA = Path(__file__).parents[1] / "data" / "explain_rules.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
APPLIES = {row["rule"]: (row["log"], row["environment"], row["cause"]) for row in ROWS}


def scene(log, environment):
    return scene_of([log.encode()], environment)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_applies_to_its_case_and_not_to_an_empty_log(rule):
    log, environment, cause = APPLIES[rule.id]
    here = scene(log, environment)
    assert rule.when(here)
    assert not rule.when(scene("training started", environment))
    found = explain(log, environment)
    assert (found.cause or found.alternatives[0].cause) == cause  # few words that name no error only suggest it
    said = rule.says(here)
    assert "{" not in said
    assert "?" not in said


def test_every_rule_has_one_case():
    assert sorted(row["rule"] for row in ROWS) == sorted(rule.id for rule in RULES)


def test_no_rule_says_again_what_another_says():
    """Two rules for one cause that hold on the same cases, each other's among them, count one fact twice."""
    held = {}
    for name, (log, environment, _) in APPLIES.items():
        here = scene(log, environment)
        for rule in RULES:
            if rule.when(here):
                held.setdefault(rule.id, set()).add(name)
    groups = {}
    for rule in RULES:
        cause = max(rule.causes, key=rule.causes.__getitem__)
        groups.setdefault((cause, frozenset(held[rule.id])), []).append(rule.id)
    assert [names for names in groups.values() if len(names) > 1] == []
