"""Small samples of ``benchmarks/server``: hostile requests, hang-ups, overload, company and forms."""

from __future__ import annotations

import asyncio
import random

import pytest
from benchmarks.server import answers, hangups, hostile, overload, parts, schemas


@pytest.fixture(scope="module")
def few(_cache):
    """A server of the demo with few places."""
    with parts.serving("demo", "--parallel", "4") as found:
        yield found


@pytest.mark.parametrize(
    ("script", "count"),
    [(hostile, 300), (hangups, 60), (answers, 60)],
    ids=["hostile", "hangups", "answers"],
)
def test_promises_hold(few, script, count):
    found = asyncio.run(script.run(few, count, 3))
    assert found.broken == []
    assert found.counts


def test_no_step_but_one_begins_for_a_client_that_has_gone(few):
    async def count(found: parts.Findings) -> None:
        ends = await parts.endless(few.port)
        await hangups.steps_after(few, ends, found, 20, random.Random(3))

    found = parts.Findings()
    asyncio.run(count(found))
    assert found.broken == []
    assert found.counts["hang-ups of the only client"] == 20
    assert found.counts["steps begun after a hang-up, at most"] <= 1


def test_whoever_is_refused_is_answered_later(few):
    found = asyncio.run(overload.run(few, 140, 3))
    assert found.counts["answers"] == 140
    assert found.counts["requests that were refused"] > 50  # how long they waited is for a quiet machine


@pytest.mark.usefixtures("_cache")
def test_answers_of_random_weights_are_of_their_schemas():
    with parts.serving(str(schemas.MODEL), "--parallel", "8") as server:
        found = asyncio.run(schemas.run(server, 80, 3))
    assert found.broken == []
    assert found.counts["ended by stop"] > 45


def test_what_judges_answers_tells_wrong_ones():
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["a"]}
    for right in ('{"a":3}', '{"a":3,"b":"x"}', r'{"\u0061":3}', '{"a":"x","a":3}'):
        assert schemas.judge(right, schema)
    for wrong in ('{"a":0}', '{"a":true}', '{"a":1,"a":0}', r'{"a":1,"\u0061":"x"}', "{}", "[]", '{"a":1', '{"a":1.5}'):
        assert not schemas.judge(wrong, schema)
    assert not schemas.judge('{"a":3,"b":1}', {**schema, "additionalProperties": False})
    assert not schemas.judge('{"b":1,"b":2}', {"type": "object", "minProperties": 2})
    assert not schemas.judge("3", {"oneOf": [{"enum": [3]}, {"enum": [3, 4]}]})
    assert not schemas.judge('{"v":true,"left":{"v":1}}', {"$ref": "#/$defs/tree"})
    assert schemas.is_valid("ab", {"type": "string", "pattern": "^[a-c]{1,4}$"})
    assert not schemas.is_valid("abd", {"type": "string", "pattern": "^[a-c]{1,4}$"})
    assert not schemas.is_valid(True, {"enum": [1]})
    chance = random.Random(1)
    assert len({str(schemas.random_schema(chance)) for _ in range(50)}) > 30
