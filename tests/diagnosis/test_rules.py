"""Every rule holds on a message of its own and on no empty log, and says what it knows."""

import json
import re
from pathlib import Path

import pytest

from rung.diagnosis.explain import scene as scene_of
from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.match import signatures
from rung.diagnosis.rules import RULES, conditions

DATA = Path(__file__).parents[1] / "data" / "rules.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
HOLDS_ON = {row["rule"]: (row["log"], row["environment"]) for row in ROWS}


def scene(log, environment):
    return scene_of([log.encode()], environment)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_holds_on_its_message_and_not_on_an_empty_log(rule):
    log, environment = HOLDS_ON[rule.id]
    here = scene(log, environment)
    assert rule.when(here)
    assert not rule.when(scene("training started", environment))
    assert set(rule.causes) <= set(causes())
    said = rule.says(here)
    assert "{" not in said
    assert "?" not in said
    assert not re.search(r"\b[a-z]\.\w", said), "a name of the code stands in the sentence"


def test_every_rule_has_one_message():
    assert sorted(row["rule"] for row in ROWS) == sorted(rule.id for rule in RULES)


def test_groups_of_signatures_name_what_is_there_and_each_once():
    known = {signature.id for signature in signatures()}
    groups = [value for name, value in vars(conditions).items() if isinstance(value, tuple) and name.isupper()]
    for group in groups:
        if all(isinstance(name, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in group):
            assert set(group) <= known
            assert len(set(group)) == len(group)
