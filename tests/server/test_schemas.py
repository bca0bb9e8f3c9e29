"""Schemas: what an answer cannot be held to is refused by its name, and what is let through is valid when decoded."""

from __future__ import annotations

import json
import random
from typing import Any

import llguidance
import numpy as np
import pytest
from benchmarks.server import schemas as random_schemas

from rung.core.errors import UsageError
from rung.engine.load import load
from rung.server.child.grammars import Grammars
from rung.server.protocol import Grammar

HELLO = [{"role": "user", "content": "hello"}]
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"enum": [1, 2]}, "left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
            "required": ["v"],
        }
    },
}


def doubled(times: int) -> dict[str, Any]:
    """A schema of so many levels, each of which requires the next one twice."""
    levels = {
        str(level): {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/{level + 1}"} for key in "xy"},
            "required": ["x", "y"],
        }
        for level in range(times)
    }
    return {"$ref": "#/$defs/0", "$defs": {**levels, str(times): {"type": "null"}}}


REFUSED: dict[str, tuple[Any, str]] = {
    "recursive at once": ({"$ref": "#"}, "`$ref` '#' leads back to itself"),
    "recursive in allOf": ({"allOf": [{"$ref": "#"}]}, "`$ref` '#' leads back to itself"),
    "recursive by two": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "`$ref` '#/$defs/a' leads back to itself",
    ),
    "recursive and required": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "by `$ref`, so that no answer would end",
    ),
    "recursive items": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "by `$ref`, so that no answer"),
    "exponential by references": (doubled(40), "shortest answer longer than"),
    "exponential by combinations": (
        {"allOf": [{"anyOf": [{"minimum": least}, {"maximum": -least}]} for least in range(12)]},
        "`allOf` make more than 256 combinations",
    ),
    "exponential by items": (
        {"minItems": 4000, "items": {"minItems": 4000, "items": {"type": "null"}}},
        "shortest answer longer than",
    ),
    "exponential by choices of properties": (
        {"type": "object", "properties": dict.fromkeys("abcdefghijkl", True), "minProperties": 6},
        "`minProperties` and `maxProperties` of 12 properties",
    ),
    # on a fast machine it is too large before it takes too long
    "exponential by multiples": ({"type": "integer", "multipleOf": 999983}, " too "),
    "contradictory types": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "string and null: two `type`s"),
    "contradictory bounds": ({"type": "integer", "minimum": 3, "maximum": 2}, "`minimum` and `maximum`"),
    "contradictory edges": (
        {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
        "`minimum` and `maximum`",
    ),
    "contradictory values": ({"type": "string", "enum": [1]}, "`enum` and `const` leave no value"),
    "contradictory lengths": ({"type": "string", "minLength": 3, "maxLength": 2}, "`minLength` is above `maxLength`"),
    "contradictory items": ({"type": "array", "minItems": 3, "maxItems": 2}, "`minItems` is above `maxItems`"),
    "contradictory properties": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "a schema is false",
    ),
    "closed and required": (
        {"type": "object", "required": ["a"], "unevaluatedProperties": False},
        "a schema is false",
    ),
    "contradictory branches": ({"type": "string", "anyOf": [{"const": 1}, {"type": "null"}]}, "two `type`s"),
    "contradictory pattern": ({"type": "string", "pattern": "^a$", "minLength": 2}, "Regex is empty"),
    "contradictory multiples": ({"multipleOf": 7, "minimum": 1, "maximum": 6}, "`multipleOf`, `minimum`"),
    "more than the most": ({**OPEN, "required": ["a", "b"], "maxProperties": 1}, "more than `maxProperties`"),
    "not": ({"not": {"type": "string"}}, "`not` cannot be enforced"),
    "not, within": ({"items": {"properties": {"a": {"not": {}}}}}, "`not` cannot be enforced"),
    "if": ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "`if` cannot be enforced"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "`uniqueItems` cannot be enforced"),
    "contains": ({"type": "array", "contains": {"type": "null"}}, "`contains` cannot be enforced"),
    "propertyNames beside names": ({**OPEN, "propertyNames": {"pattern": "^a"}}, "`propertyNames` cannot be enforced"),
    "propertyNames of several": (
        {"propertyNames": {"pattern": "^a", "minLength": 2}},
        "`propertyNames` can be enforced with one `pattern`",
    ),
    "propertyNames of values with a pattern": (
        {"propertyNames": {"enum": ["a", "b"], "pattern": "^a"}},
        "`propertyNames` cannot be enforced with `pattern`",
    ),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "`dependentRequired` cannot be enforced"),
    "dependentSchemas": ({"dependentSchemas": {"a": OPEN}}, "`dependentSchemas` cannot be enforced"),
    "dependencies": ({"dependencies": {"a": ["b"]}}, "`dependencies` cannot be enforced"),
    "unevaluatedItems": ({"unevaluatedItems": False}, "`unevaluatedItems` cannot be enforced"),
    "unevaluatedProperties": ({**OPEN, "unevaluatedProperties": OPEN}, "`unevaluatedProperties` cannot be enforced"),
    "$dynamicRef": ({"$dynamicRef": "#node"}, "`$dynamicRef` cannot be enforced"),
    "$ref elsewhere": ({"$ref": "https://example.com/a.json"}, "`$ref` 'https://example.com/a.json'"),
    "$ref to nothing": ({"$ref": "#/nowhere"}, "`$ref` '#/nowhere' leads nowhere"),
    "$id within": ({"properties": {"a": {"$id": "b", "$ref": "#"}}}, "`$id` within a schema"),
    "oneOf that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "`oneOf` cannot be enforced"),
    "oneOf of open objects": (
        {"oneOf": [{**OPEN, "required": ["a"]}, {**OPEN, "properties": {"b": True}}]},
        "`oneOf` cannot be enforced",
    ),
    "oneOf that another part tells apart": (
        {
            "oneOf": [
                {"properties": {"p": {"properties": {"z": True}, "required": ["z"]}}, "required": ["p"]},
                {
                    "properties": {
                        "p": {
                            "oneOf": [
                                {"properties": {"k": {"const": 1}}},
                                {"properties": {"k": {"const": 2}, "z": False}},
                            ]
                        }
                    },
                    "required": ["p"],
                },
            ]
        },
        "`oneOf` cannot be enforced",
    ),
    "names that repeat": (
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
        "`minProperties` cannot be enforced",
    ),
    "counts of an open object": ({**OPEN, "additionalProperties": True, "maxProperties": 3}, "`maxProperties` cannot"),
    "patterns of one name": ({"patternProperties": {"^a": True, "b$": True}}, "`patternProperties` cannot be enforced"),
    "patterns beside others": (
        {"allOf": [OPEN, {"patternProperties": {"^a": True}}]},
        "`patternProperties` cannot be enforced",
    ),
    "format": ({"type": "string", "format": "iri"}, "`format` 'iri' cannot be enforced"),
    "format, within": ({"items": {"type": "string", "format": "regex"}}, "`format` 'regex' cannot be enforced"),
    "pattern that has no end": ({"pattern": "("}, "a `pattern` or regular expression of it is none: unclosed group"),
    "pattern of an alphabet": ({"pattern": r"\p{Script=Greek}"}, r"`pattern` '\\p{Script=Greek}'"),
    "pattern that looks ahead": ({"pattern": "(?=a)b"}, "`pattern` '(?=a)b'"),
    "pattern with a flag": ({"pattern": "(?i)a"}, "`pattern` '(?i)a'"),
    "pattern with words": ({"pattern": r"\bword\b"}, r"`pattern` '\\bword\\b'"),
    "pattern with an end within": ({"pattern": "a$b"}, "within a `pattern`"),
    "pattern of a control character": ({"pattern": r"^\x01"}, "`pattern` '^\\\\x01'"),
    "a control character": ({"const": "\u0001"}, "`const` has a control character"),
    "an integer that is rounded": ({"const": 2**53 + 1}, "`const` has a number beyond"),
    "an integer without a place": ({"const": 2**63}, "`const` has a number beyond"),
    "a fraction that is rounded": ({"enum": [-94962.88885309827]}, "`enum` has a number of more than 15 digits"),
    "bounds that are rounded": ({"type": "integer", "minimum": 2**60}, "`minimum` or `maximum` is beyond"),
    "multipleOf 0": ({"multipleOf": 0}, "`multipleOf` must be above 0"),
    "multipleOf of many digits": ({"multipleOf": 0.123456789123}, "`multipleOf` 0.123456789123 has too many digits"),
    "a type that is none": ({"type": "nothing"}, "`type` 'nothing' is none"),
    "a bound that is none": ({"minLength": "a"}, "`minLength` must be a whole number"),
    "a long text": ({"type": "string", "minLength": 10**9}, "`minLength` is more than 65,536"),
    "properties that are none": ({"properties": ["a"]}, "`properties` must be an object"),
    "a property that is null": ({"properties": {"a": None}}, "a schema must be an object or a truth value"),
    "required of draft 3": ({"properties": {"a": {"required": True}}}, "`required` must be a list"),
}


@pytest.mark.parametrize(("schema", "said"), REFUSED.values(), ids=REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused_by_its_keyword(server, schema, said):
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    status, answer, _ = server.call("/v1/completions", {"prompt": "a", "max_tokens": 5, "response_format": form})
    assert status == 400, answer
    assert said in answer["error"]["message"]


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 2}]},
        doubled(2),
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_schemas_that_refer_to_themselves_and_end_are_held(server, schema):
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"prompt": "a", "max_tokens": 200, "response_format": form, "temperature": 5, "n": 16, "seed": 1}
    status, answer, _ = server.call("/v1/completions", body)
    assert status == 200, answer
    whole = [choice["text"] for choice in answer["choices"] if choice["finish_reason"] == "stop"]
    assert whole
    assert all(isinstance(json.loads(text), dict | list | type(None)) for text in whole)


class Form:
    """The answers that a schema lets through."""

    def __init__(self, grammars: Grammars, schema: Any) -> None:
        self._matcher = grammars.compile(Grammar("json_schema", json.dumps(schema)))

    def takes(self, text: str, tokens: list[int]) -> bool:
        """Return whether a text is let through to its end."""
        matcher: llguidance.LLMatcher = self._matcher.deep_copy()
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.fixture(scope="module")
def model():
    return load("demo", device="cpu")


@pytest.fixture(scope="module")
def grammars(model):
    return Grammars(model)


MAP = {"type": "object", "additionalProperties": {"type": "integer"}}
#: Schemas with texts that are let through, and texts that are not.
ENFORCED: dict[str, tuple[Any, list[str], list[str]]] = {
    "open": (OPEN, ['{"a":1}', "{}"], [r'{"\u0061":"x"}', r'{"a":1,"\u0061":"x"}', '{"a":1,"a":2}', '{"b":1}']),
    "required": ({**OPEN, "required": ["a"]}, ['{"a":1}'], ["{}", r'{"a":1,"\u0061":"x"}', r'{"\u0061":1}']),
    "required alone": ({"type": "object", "required": ["a"]}, ['{"a":[]}'], ["{}", '{"b":1}']),
    "open to all": (
        {**OPEN, "additionalProperties": True},
        ['{"a":1,"b":"x"}', '{"b":[1],"c":{}}'],
        [r'{"\u0061":"x"}', r'{"a":1,"\u0061":"x"}', '{"a":1,"a":"x"}', '{"a":"x"}'],
    ),
    "map": (MAP, ["{}", '{"a":1,"b":2}'], ['{"a":"x"}', r'{"\u0061":1}']),
    "map with least": ({**MAP, "minProperties": 1, "maxProperties": 2}, ['{"a":1}'], ["{}", '{"a":1,"b":1,"c":1}']),
    "least of named": (
        {"type": "object", "properties": {key: {"const": 1} for key in "abc"}, "minProperties": 2, "maxProperties": 2},
        ['{"a":1,"c":1}', '{"b":1,"c":1}'],
        ['{"a":1}', '{"a":1,"b":1,"c":1}', '{"a":1,"a":1}'],
    ),
    "closed": ({"unevaluatedProperties": False}, ["{}"], ['{"a":1}', "1"]),
    "closed beside allOf": (
        {"allOf": [{"type": "object"}], "unevaluatedProperties": False},
        ["{}"],
        ['{"a":1}'],
    ),
    "closed beside a reference": (
        {"$ref": "#/$defs/a", "properties": {"b": True}, "unevaluatedProperties": False, "$defs": {"a": OPEN}},
        ['{"b":1}', '{"b":1,"a":1}'],
        ['{"c":1}', '{"b":1,"a":"x"}'],
    ),
    "closed beside a reference to all objects": (
        {"$ref": "#/$defs/a", "unevaluatedProperties": False, "$defs": {"a": {"type": "object"}}},
        ["{}"],
        ['{"a":1}'],
    ),
    "closed beside names that anyOf requires": (
        {
            "properties": {"a": True},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "unevaluatedProperties": False,
        },
        ['{"a":1}'],
        ['{"b":1}', "{}", '{"a":1,"b":1}'],
    ),
    "closed within": (
        {"properties": {"a": {"const": 1}}, "allOf": [{"type": "object", "unevaluatedProperties": False}]},
        ["{}"],
        ['{"a":1}'],
    ),
    "closed after others are named": (
        {"allOf": [MAP], "unevaluatedProperties": False},
        ["{}", '{"a":1}'],
        ['{"a":"x"}'],
    ),
    "closed with patterns": (
        {"patternProperties": {"^a": {"const": 1}}, "unevaluatedProperties": False},
        ['{"ab":1}'],
        ['{"b":1}', '{"ab":2}'],
    ),
    "values that are closed": ({"enum": [{}, {"a": 1}], "additionalProperties": False}, ["{}"], ['{"a":1}']),
    "values of named properties": (
        {"enum": [{"a": 1}, {"a": "x"}, {"b": 1}], "additionalProperties": {"type": "integer"}},
        ['{"a":1}', '{"b":1}'],
        ['{"a":"x"}'],
    ),
    "merged": (
        {"properties": {"a": {"type": "integer"}}, "allOf": [{"properties": {"b": {"enum": [1]}}, "required": ["b"]}]},
        ['{"a":1,"b":1}', '{"b":1}'],
        ['{"a":1}', '{"b":2}', '{"b":1,"c":1}', "[]"],
    ),
    "beside a reference": (
        {"$ref": "#/$defs/p", "properties": {"b": {"maximum": 3}}, "$defs": {"p": {**OPEN, "required": ["a"]}}},
        ['{"b":1,"a":1}'],
        ['{"b":9,"a":1}', '{"b":1}', '{"a":1,"c":1}'],
    ),
    "one of tagged": (
        {"oneOf": [{"properties": {"k": {"const": tag}, tag: True}, "required": ["k"]} for tag in ("x", "y")]},
        ['{"k":"x","x":1}', '{"k":"y"}'],
        ['{"k":"x","y":1}', '{"k":"z"}', '{"x":1}'],
    ),
    "one of tagged by default": (
        {"oneOf": [{"properties": {"k": {"const": tag, "default": tag}, tag: True}} for tag in ("x", "y")]},
        ['{"k":"x","x":1}', '{"k":"y"}'],
        ['{"k":"x","y":1}', '{"x":1}', "{}"],
    ),
    "one of tagged within one": (
        {
            "oneOf": [
                {"oneOf": [{"properties": {"k": {"const": "x"}, "color": {"const": color}}} for color in ("b", "w")]},
                {"properties": {"k": {"enum": ["y", "z"]}}},
            ]
        },
        ['{"k":"x","color":"b"}', '{"k":"x","color":"w"}', '{"k":"y"}'],
        ['{"k":"x"}', '{"color":"b"}', "{}"],
    ),
    "one of tagged that lead back": (
        {"oneOf": [{"properties": {"next": {"$ref": "#"}, "k": {"const": tag}}} for tag in ("x", "y")]},
        ['{"next":{"k":"y"},"k":"x"}', '{"k":"y"}'],
        ['{"next":{"k":"y"}}', '{"next":{},"k":"y"}'],
    ),
    "all names": ({**MAP, "propertyNames": {"type": "string"}}, ["{}", '{"a":1,"":2}'], ['{"a":"x"}']),
    "names that are listed": (
        {**MAP, "propertyNames": {"$ref": "#/$defs/of"}, "required": ["a"], "$defs": {"of": {"enum": ["a", "b"]}}},
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":"x"}', '{"a":1,"c":1}'],
    ),
    "names that are listed, beside others": (
        {**OPEN, "propertyNames": {"enum": ["a", "b"]}},
        ['{"a":1,"b":"x"}'],
        ['{"a":"x"}', '{"c":1}'],
    ),
    "names that are listed, and closed": (
        {"propertyNames": {"enum": ["a"]}, "unevaluatedProperties": False},
        ["{}"],
        ['{"a":1}'],
    ),
    "names of a pattern": (
        {**MAP, "propertyNames": {"pattern": "^a"}},
        ['{"ab":1}', "{}"],
        ['{"ab":"x"}', '{"b":1}', r'{"\u0061":"x"}'],
    ),
    "names of a format": (
        {"propertyNames": {"format": "date"}},
        ['{"2024-02-29":[]}', "{}"],
        ['{"a":1}', '{"2023-02-29":1}'],
    ),
    "names of a length": ({**MAP, "propertyNames": {"minLength": 2}}, ['{"ab":1}'], ['{"a":1}', '{"ab":"x"}']),
    "names of nothing": ({"propertyNames": False}, ["{}"], ['{"a":1}']),
    "keywords that are null": (
        dict.fromkeys(("properties", "required", "enum", "minimum", "items", "$id", "$ref", "anyOf"))
        | {"const": None, "default": None},
        ["null"],
        ["1", "{}"],
    ),
    "places of draft 4": ({"properties": {"a": {"$id": "#a", "const": 1}}}, ['{"a":1}'], ['{"a":2}']),
    "references by the name of the whole": (
        {
            "$id": "https://example.com/a",
            "properties": {"a": {"$ref": "https://example.com/a"}, "b": {"$ref": "https://example.com/a#/$defs/b"}},
            "$defs": {"b": {"const": 1}},
        },
        ['{"a":{"b":1},"b":1}', "{}"],
        ['{"a":1}', '{"b":2}'],
    ),
    "edges": ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.25", "0.5"], ["0", "0.51", "-1", "0.0"]),
    "digits": ({"minimum": 0.1, "maximum": 0.30000000000000004}, ["0.3", "0.1"], ["0.09", "0.31"]),
    "integers": ({"type": "integer", "exclusiveMaximum": 3.5, "minimum": -1.5}, ["3", "-1"], ["4", "-2", "1.0", "1e0"]),
    "large integers": ({"type": "integer"}, ["9007199254740991"], ["9007199254740993", "1" + 400 * "0"]),
    "integers that are kept": (
        {"enum": [2**60, -(2**60), 2**53 + 2]},
        ["1152921504606846976", "-1152921504606846976", "9007199254740994"],
        ["1152921504606846977", "9007199254740993"],
    ),
    "fractions that are kept": (
        {"enum": [123456.7890123456, 0.30000000000000004]},
        ["123456.7890123456", "0.30000000000000004"],
        ["123456.789012345", "0.3"],
    ),
    "multiples": ({"multipleOf": 0.5, "minimum": 2.06, "maximum": 2.56}, ["2.5"], ["2.1", "2"]),
    "values": (
        {"enum": [1, "a", True, {"b": [1]}], "maxLength": 3},
        ["1", '"a"', '{"b":[1]}'],
        ["1.5", '"b"', "false"],
    ),
    "values and a type": ({"type": "integer", "enum": [1, 2.5, "x"]}, ["1"], ["2.5", '"x"']),
    "dates": ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"0000-01-01"', '"2024-1-1"']),
    "times": ({"type": "string", "format": "time"}, ['"10:00:00Z"'], ['"10:00:60Z"', '"24:00:00Z"', '"10:00:00"']),
    "versions of uuid": (
        {"type": "string", "format": "uuid4"},
        ['"550e8400-e29b-41d4-a716-446655440000"'],
        ['"550e8400-e29b-11d4-a716-446655440000"', '"a"'],
    ),
    "a format that is a note": ({"type": "string", "format": "file-path"}, ['"/a b"'], ["1"]),
    "a format of values": ({"enum": ["iri", "a"], "format": "iri"}, ['"iri"', '"a"'], ['"b"']),
    "a format that values are not of": (
        {"enum": ["2024-02-29", "2023-02-29"], "format": "date"},
        ['"2024-02-29"'],
        ['"2023-02-29"'],
    ),
    "uris": (
        {"type": "string", "format": "uri"},
        [
            '"http://localhost:49152/a"',
            '"postgres://user:a%20b@host:5432/db"',
            '"http://[::1]:80/"',
            '"http://a_b/"',
            '"mailto:a@b"',
        ],
        ['"http://a:99999/"', '"http://[::1"', '"http://[a]/"', '"http://a@b@c/"', '"/a"', '"http://a b/"'],
    ),
    "hosts": (
        {"type": "string", "format": "hostname"},
        ['"a.b.c.d.e.f.g.h"', '"xn--mnchen-3ya.de"', '"a-b.googleusercontent.com"'],
        ['"-a"', '"a-"', '"a..b"', '"a.b."', '""', '"a_b"'],
    ),
    "addresses of mails": (
        {"type": "string", "format": "email"},
        ['"first.middle.last@example.com"', '"a+b@b.c"'],
        ['"a..b@c"', '".a@b"', '"a@"', '"a@b@c"'],
    ),
    "anything but ends of lines": ({"type": "string", "pattern": "^.$"}, ['"a"', '"é"'], ['"\\r"', '"\u2028"', '""']),
    "classes": ({"type": "string", "pattern": r"^[[a]\d$"}, ['"a1"', '"[1"'], ['"ab"', '"a\u0663"', '"]1"']),
    "letters of all alphabets": (
        {"type": "string", "pattern": r"^\p{Lu}[\p{Ll}\d']*[^\p{L}]$"},
        ['"Äß1."', '"Я\'-"'],
        ['"ä."', '"Äß"', '"Ä_x"', '"p{Lu}."'],
    ),
    "no letters": ({"type": "string", "pattern": r"^\W$"}, ['"-"'], ['"é"', '"a"', '"_"']),
    "either": ({"type": "string", "pattern": "^a|b$"}, ['"ab"', '"ax"', '"xb"'], ['"xx"', '"ba"']),
    "tree": (
        TREE,
        ['{"v":1,"left":{"v":2,"right":{"v":1}},"right":{"v":2}}', '{"v":1}'],
        ['{"left":{"v":1}}', '{"v":1,"left":{}}', '{"v":1,"left":{"v":3}}', '{"v":1,"left":null}'],
    ),
    "a list that ends": (
        {"anyOf": [{"const": 0}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
        ["0", "[[0],0]"],
        ["[]", "[1]", "[[]]"],
    ),
    "tuples": ({"prefixItems": [{"type": "null"}], "items": {"const": 1}}, ["[null,1]", "[]"], ["[1]", "[null,2]"]),
    "tuples of draft 7": ({"items": [{"const": 1}], "additionalItems": False}, ["[1]", "[]"], ["[1,1]", "[2]"]),
    "bounds of draft 4": ({"maximum": 3, "exclusiveMaximum": True, "type": "integer"}, ["2"], ["3"]),
    "patterns of names": (
        {"type": "object", "patternProperties": {"^a.$": {"const": 1}}, "properties": {"b": {"const": 2}}},
        ['{"b":2,"ax":1}', '{"ay":1}'],
        ['{"ax":2}', '{"b":1}', '{"c":1}'],
    ),
}


@pytest.mark.parametrize(("schema", "right", "wrong"), ENFORCED.values(), ids=ENFORCED)
def test_what_is_let_through_is_valid_once_it_is_decoded(model, grammars, schema, right, wrong):
    form = Form(grammars, schema)
    for text in (*right, *wrong):
        assert form.takes(text, model.tokenizer.encode(text, special=False, bos=False)) == (text in right), text


def test_answers_drawn_from_masks_are_of_random_schemas(model, grammars):
    """Any answer that the masks let through; another library judges, where it is there."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    chance, whole = random.Random(5), 0
    for _ in range(60):
        schema = random_schemas.random_schema(chance)
        mask, said = grammars.mask(grammars.compile(Grammar("json_schema", json.dumps(schema)))), list[int]()
        for _ in range(120):
            able = np.flatnonzero(np.unpackbits(mask(said).view(np.uint8), bitorder="little"))
            said.append(int(chance.choice(able)))
            if said[-1] in model.end_tokens:
                text = b"".join(model.tokenizer.piece(token) for token in said[:-1]).decode()
                assert random_schemas.judge(text, schema), (text, schema)
                validator(schema).validate(json.loads(text))
                whole += 1
                break
    assert whole > 15


def test_tools_whose_definitions_have_one_name_keep_their_own(server):
    """References of each begin at its own schema."""

    def tool(name: str, value: str) -> dict[str, Any]:
        schema = {
            "$id": f"https://example.com/{name}",
            "properties": {"of": {"$ref": "#/$defs/Value"}, "too": {"$ref": "#/properties/of"}},
            "required": ["of", "too"],
            "$defs": {"Value": {"const": value}},
        }
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    body = {"messages": HELLO, "tools": [tool("one", "first"), tool("two", "second")], "tool_choice": "required"}
    values = set()
    for seed in range(12):
        request = {**body, "max_tokens": 80, "temperature": 3, "seed": seed}
        (choice,) = server.call("/v1/chat/completions", request)[1]["choices"]
        (call,) = choice["message"]["tool_calls"]
        value = {"one": "first", "two": "second"}[call["function"]["name"]]
        assert json.loads(call["function"]["arguments"]) == {"of": value, "too": value}
        values.add(value)
    assert values == {"first", "second"}


def test_a_schema_that_is_nested_too_deeply_is_refused(grammars):
    with pytest.raises(UsageError, match="nested too deeply"):
        grammars.compile(Grammar("json_schema", '{"items":' * 5000 + "true" + "}" * 5000))
