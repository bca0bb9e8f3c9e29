"""Answers of a form: schemas, regular expressions and GBNF are kept to at any temperature."""

from __future__ import annotations

import json
import random
import re
import threading

import numpy as np
import pytest

from rung.engine.load import load
from rung.server.child.grammars import Grammars
from rung.server.protocol import Grammar

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cpu", "gpu"]},
        "cores": {"type": "integer", "minimum": 1, "maximum": 99},
        "fast": {"type": "boolean"},
    },
    "required": ["name", "kind", "cores", "fast"],
    "additionalProperties": False,
}


def is_valid(text: str) -> bool:
    """By hand, without the library that made the masks."""
    found = json.loads(text)
    return (
        list(found) == list(SCHEMA["properties"])
        and isinstance(found["name"], str)
        and len(found["name"]) <= 8
        and found["kind"] in ("cpu", "gpu")
        and type(found["cores"]) is int
        and 1 <= found["cores"] <= 99
        and type(found["fast"]) is bool
    )


def test_answers_keep_to_a_schema_at_any_temperature(openai_client):
    form = {"type": "json_schema", "json_schema": {"name": "device", "schema": SCHEMA, "strict": True}}
    for temperature in (0, 1, 5):
        answer = openai_client.chat.completions.create(
            model="demo", messages=HELLO, response_format=form, n=8, seed=1, temperature=temperature, max_tokens=120
        )
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            assert is_valid(choice.message.content), choice.message.content
            assert not re.search(r'": |", |\n', choice.message.content)  # compact


def test_streams_and_other_clients_keep_to_forms_too(openai_client, server):
    stream = openai_client.completions.create(
        model="demo",
        prompt="the model",
        max_tokens=40,
        temperature=3,
        seed=2,
        stream=True,
        extra_body={"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}},
    )
    assert re.fullmatch("[a-f]{3}-[0-9]{2}", "".join(chunk.choices[0].text for chunk in stream))
    grammar = 'root ::= ("yes" | "no") " " [0-9]'
    body = {"messages": HELLO, "json_schema": {"const": [1, "two"]}, "max_tokens": 20}
    assert server.call("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"] == '[1,"two"]'
    answer = server.call("/v1/chat/completions", {"messages": HELLO, "grammar": grammar, "max_tokens": 20})[1]
    assert re.fullmatch("(yes|no) [0-9]", answer["choices"][0]["message"]["content"])
    body = {"model": "demo", "messages": HELLO, "format": SCHEMA, "stream": False, "options": {"num_predict": 120}}
    assert is_valid(server.call("/api/chat", body)[1]["message"]["content"])
    body = {"messages": HELLO, "response_format": {"type": "json_object"}, "max_tokens": 5}
    assert server.call("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "json_object", "schema": {"enum": ["x" * 100] * 1000}}},
        {"grammar": "root ::= missing"},
        {"json_schema": {"const": 1}, "grammar": 'root ::= "a"'},
        {"grammar": "root ::= ("},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"regex": "(a{1000}){1000}{1000}"}},
        {"response_format": {"type": "json_object", "schema": {"type": "integer", "multipleOf": 999983}}},
        {"grammar": 'root ::= "a"', "structured_outputs": {"regex": "a"}},
    ],
)
def test_a_form_that_cannot_be_met_is_refused_and_harms_nobody(server, form):
    """CVE-2025-48944: a schema that ended the engine."""
    engine = server.engine()
    status, answer, _ = server.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5, **form})
    assert status == 400, answer
    assert answer["error"]["message"]
    assert server.engine() == engine


def test_a_form_that_takes_too_long_is_refused_in_seconds_and_stops_nobody(server):
    """Its compiling would have kept the whole engine busy for minutes."""
    schema = {"type": "integer", "multipleOf": 999979}
    body = {"messages": HELLO, "max_tokens": 5, "response_format": {"type": "json_object", "schema": schema}}
    refused: list[tuple[int, dict]] = []
    thread = threading.Thread(target=lambda: refused.append(server.call("/v1/chat/completions", body)[:2]))
    thread.start()
    others = 0
    while thread.is_alive():
        assert server.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5})[0] == 200
        others += 1
    ((status, answer),) = refused
    assert status == 400
    message = answer["error"]["message"]
    assert "takes more than 2 s" in message or "is too large" in message  # a quick machine comes to that limit
    assert others > 1
    fine = {**body, "response_format": {"type": "json_object", "schema": {"type": "integer", "multipleOf": 7}}}
    assert server.call("/v1/chat/completions", {**fine, "max_tokens": 60})[0] == 200


FORMS = [
    Grammar("json_schema", json.dumps(SCHEMA)),
    Grammar("json_schema", json.dumps({"const": ["it's here", "größe", 12.5, {"a b": None, "": [True] * 9}]})),
    Grammar("json_schema", json.dumps({"enum": ["don't know", "don't care", "  ", 'say "so"', "\n\t"]})),
    Grammar("regex", "(the|then|these) models? (can't|cannot) run in [0-9]{2} of [0-9]{3} MB"),
    Grammar("gbnf", 'root ::= ("yes, it is so " | "no ") [0-9] " in the end of all"'),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.text[:20])
def test_forced_tokens_are_those_that_masks_let_through_alone(form):
    """One mask after the other says the same, from wherever an answer is taken up again."""
    model = load("demo", device="cpu")
    grammars = Grammars(model)
    matcher, forced = grammars.compile(form), 0
    for seed in range(6):
        chance, said = random.Random(seed), list[int]()
        whole = grammars.mask(matcher)
        while True:
            following = whole.forced(said)
            for number, token in enumerate(following):
                begun = [*said, *following[:number]]
                mask = (whole if number % 2 else grammars.mask(matcher))(begun)
                able = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                assert token in able
                assert set(able) == {token} or set(able) <= set(model.end_tokens)
            forced += len(following)
            said += following
            if said and said[-1] in model.end_tokens:
                break
            able = np.flatnonzero(np.unpackbits(whole(said).view(np.uint8), bitorder="little"))
            assert not set(able) <= set(model.end_tokens), "an answer that is whole waits for a step"
            said.append(int(chance.choice(able)))
            if said[-1] in model.end_tokens:
                break
    assert forced > 20


def test_an_answer_of_a_form_is_the_same_where_each_token_is_computed_by_itself(server):
    """Tokens whose log probabilities are wanted are chosen one after the other; the others are known before."""
    for seed in range(6):
        form = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "seed": seed}
        body = {"prompt": "the model", "max_tokens": 100, "temperature": 1, **form}
        quick = server.call("/v1/completions", body)[1]
        slow = server.call("/v1/completions", {**body, "logprobs": 1})[1]
        assert quick["choices"][0]["text"] == slow["choices"][0]["text"]
        assert quick["usage"]["completion_tokens"] == slow["usage"]["completion_tokens"]
        assert quick["choices"][0]["finish_reason"] == slow["choices"][0]["finish_reason"] == "stop"
