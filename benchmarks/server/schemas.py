"""Answers of random JSON schemas by a model with random weights: whether each is valid, and what the forms cost.

    python -m benchmarks.server.schemas [--count 10000] [--seed 0] [--model MODEL.gguf] [--turns 0]

The model of the test suite has random weights, so nothing but the form keeps an answer to its schema. Schemas are
bounded; answers that ``max_tokens`` cuts are counted apart. ``--turns`` measures time instead: at 8 streams answers of
a form beside as many answers with as many tokens of none, in turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.server.parts import Findings, Server, arguments, at_once, call, endless, serving

MODEL = Path(__file__).parents[2] / "tests" / "fixtures" / "gguf" / "llama-f32.gguf"
STREAMS, MOST_TOKENS, CONTEXT, MOST_DEPTH = 8, 120, 128, 3
#: Of the tokens a second without a form, what is left with one; and the schema that is the same for all.
_LEAST_SHARE = 0.95
_ONE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["processor", "graphics card"]},
        "cores": {"type": "integer", "minimum": 1, "maximum": 99},
        "is fast": {"type": "boolean"},
    },
    "required": ["name", "kind", "cores", "is fast"],
    "additionalProperties": False,
}
_PATTERNS = ("^[a-c]{1,4}$", "^(on|off)$", "^[0-9]{2}:[0-9]{2}$", "^x+y?$")


#: What references lead to: a value, one that refers itself, and one that may go on for ever.
_DEFINITIONS = {
    "place": {"type": "object", "properties": {"at": {"$ref": "#/$defs/short"}}, "required": ["at"]},
    "short": {"type": "string", "maxLength": 3},
    "tree": {
        "type": "object",
        "properties": {"v": {"type": "boolean"}, "left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}},
        "required": ["v"],
    },
}
_NAMES = ("a", "b", "name", "is it", "größe", 'q"', "x_1", "a\\b", "new\nline")


def random_schema(chance: random.Random) -> dict[str, Any]:
    """Return a schema of an object of which every value may be short."""
    return {**_random_object(chance, 0), "$defs": _DEFINITIONS}


def _random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "pattern", "integer", "number", "boolean", "enum", "const", "null", "reference", "range"]
    kinds += ["object", "object", "map", "array", "any", "one", "all"] if depth < MOST_DEPTH else []
    match chance.choice(kinds):
        case "object":
            return _random_object(chance, depth)
        case "map":
            return _random_map(chance, depth)
        case "array":
            least = chance.randint(0, 2)
            items = _random_schema(chance, depth + 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + chance.randint(0, 2)}
        case "any":
            return {"anyOf": [_random_schema(chance, depth + 1) for _ in range(chance.randint(1, 3))]}
        case "one":
            return {"oneOf": [_tagged(chance, depth, tag) for tag in ("x", "y")]}
        case "all":
            both = [_random_object(chance, depth, names) for names in (("a", "b"), ("c", "d"))]
            return {"allOf": both} | ({"unevaluatedProperties": False} if chance.random() < 0.5 else {})
        case kind:
            return _random_value(chance, kind)


def _random_object(chance: random.Random, depth: int, able: Sequence[str] = _NAMES) -> dict[str, Any]:
    """Return a schema of an object: closed, open to others, or of which nothing says so."""
    names = chance.sample(able, chance.randint(0, min(4, len(able))))
    required = [name for name in names if chance.random() < 0.7]
    schema = {"type": "object", "properties": {name: _random_schema(chance, depth + 1) for name in names}}
    schema |= {"required": required} if required or chance.random() < 0.5 else {}
    if able is not _NAMES:
        return schema
    match chance.randint(0, 5):
        case 0:
            return {**schema, "additionalProperties": False}
        case 5:
            return {"type": "object", "allOf": [schema], "unevaluatedProperties": False}
        case 1:
            return {**schema, "additionalProperties": _random_value(chance, "integer")}
        case 2:
            least = chance.randint(0, len(names))
            most = chance.randint(max(least, len(required)), 4)
            return {**schema, "minProperties": least, "maxProperties": most}
    return schema


def _random_map(chance: random.Random, depth: int) -> dict[str, Any]:
    within, least = _random_schema(chance, depth + 1), chance.randint(0, 1)
    schema = {"type": "object", "minProperties": least, "maxProperties": least + chance.randint(0, 2)}
    named = {"patternProperties": {"^[a-c]{1,2}$": within}, "additionalProperties": False}
    return schema | (named if chance.random() < 0.6 else {"additionalProperties": within})


def _tagged(chance: random.Random, depth: int, tag: str) -> dict[str, Any]:
    """Return a branch that a property tells from others."""
    properties = {"kind": {"const": tag}, "of": _random_schema(chance, depth + 1)}
    return {"type": "object", "properties": properties, "required": ["kind"]}


def _random_value(chance: random.Random, kind: str) -> dict[str, Any]:
    match kind:
        case "string":
            least = chance.randint(0, 3)
            return {"type": "string", "minLength": least, "maxLength": least + chance.randint(0, 6)}
        case "pattern":
            pattern = chance.choice(_PATTERNS)
            return {"type": "string", "pattern": pattern} | ({"maxLength": 8} if "+" in pattern else {})
        case "integer":
            least = chance.randint(-300, 300)
            return {"type": "integer", "minimum": least, "maximum": least + chance.randint(0, 500)}
        case "range":
            least = chance.choice([0, -1.5, round(chance.uniform(-9, 9), 3)])
            return {"type": "number", "exclusiveMinimum": least, "exclusiveMaximum": least + chance.choice([0.5, 2, 7])}
        case "number":
            return {"enum": [0.5, -1, 1e3, 7]}
        case "enum":
            return {"enum": chance.sample(["red", 1, None, True, "ü", "a b", 2.5], chance.randint(1, 4))}
        case "const":
            return {"const": chance.choice(["fixed", 0, False, None])}
        case "reference":
            return {"$ref": f"#/$defs/{chance.choice([*_DEFINITIONS])}"}
        case _:
            return {"type": kind}


def is_valid(value: Any, schema: Any) -> bool:
    """Return whether a value is of a schema of the kind that ``random_schema`` makes."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return is_valid(value, _DEFINITIONS[schema["$ref"].removeprefix("#/$defs/")])
    for name, holds in (("anyOf", any), ("allOf", all), ("oneOf", lambda each: sum(each) == 1)):
        if name in schema and not holds([is_valid(value, each) for each in schema[name]]):
            return False
    if schema.get("unevaluatedProperties") is False and not set(value) <= _named(schema):
        return False
    if "enum" in schema or "const" in schema:
        return any(_same(value, each) for each in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "object":
            return isinstance(value, dict) and _is_object(value, schema)
        case "array":
            return (
                isinstance(value, list)
                and schema["minItems"] <= len(value) <= schema["maxItems"]
                and all(is_valid(each, schema["items"]) for each in value)
            )
        case "string":
            return (
                isinstance(value, str)
                and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30)
                and re.search(schema.get("pattern", ""), value) is not None
            )
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "number":
            return type(value) in (int, float) and schema["exclusiveMinimum"] < value < schema["exclusiveMaximum"]
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    return True


def _named(schema: dict[str, Any]) -> set[str]:
    """Return the properties that a schema and those of its ``allOf`` name."""
    return {*schema.get("properties", ())}.union(*(_named(each) for each in schema.get("allOf", ())))


def _is_object(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    if not set(schema.get("required", ())) <= set(value):
        return False
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", 1 << 30):
        return False
    for name, each in value.items():
        said = [properties[name]] if name in properties else []
        said += [within for pattern, within in patterns.items() if re.search(pattern, name)]
        if not all(is_valid(each, one) for one in said or [schema.get("additionalProperties", True)]):
            return False
    return True


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def body_of(schema: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a body whose answer is drawn at a temperature that knows no model."""
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    return {"prompt": "a", "max_tokens": MOST_TOKENS, "temperature": 1.5, "seed": seed, "response_format": form}


def judge(text: str, schema: dict[str, Any]) -> bool:
    """Return whether a text is JSON of a schema, as who decodes it reads it: of a key that stands twice, the last."""
    try:
        return is_valid(json.loads(text), schema)
    except ValueError:
        return False


async def run(server: Server, count: int, seed: int) -> Findings:
    """Have answers of random schemas; return which are not valid."""
    found, chance = Findings(), random.Random(seed)
    schemas = [random_schema(chance) for _ in range(count)]

    async def one(number: int) -> None:
        reply = await call(server.port, "/v1/completions", body_of(schemas[number], number))
        if reply.status != 200:
            found.expect(False, f"{reply.status} {reply.content[:300]!r} for {json.dumps(schemas[number])}")
            return
        (choice,) = reply.json()["choices"]
        found.count(f"ended by {choice['finish_reason']}")
        if choice["finish_reason"] == "stop" and not judge(choice["text"], schemas[number]):
            found.expect(False, f"{choice['text']!r} is not of {json.dumps(schemas[number])}")

    await at_once([partial(one, number) for number in range(count)], STREAMS)
    return found


async def _rate(port: int, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[int]]:
    """Return tokens a second of answers at 8 streams, and the tokens of each."""
    tokens = [0] * len(bodies)

    async def one(number: int) -> None:
        reply = await call(port, "/v1/completions", bodies[number])
        tokens[number] = reply.json()["usage"]["completion_tokens"]

    begun = time.perf_counter()
    await at_once([partial(one, number) for number in range(len(bodies))], STREAMS)
    return sum(tokens) / (time.perf_counter() - begun), tokens


async def _share(port: int, formed: Sequence[dict[str, Any]], ends: dict[str, int]) -> float:
    """Return the tokens a second of answers of forms over those of answers as long of none."""
    rate, tokens = await _rate(port, formed)
    free = [
        {**body, "max_tokens": most, "logit_bias": ends, "response_format": {"type": "text"}}
        for body, most in zip(formed, tokens, strict=True)
    ]
    other, _ = await _rate(port, free)
    return rate / other


async def measure(server: Server, turns: int, count: int, seed: int) -> Findings:
    """Measure answers of forms beside as long ones of none, in turns: of new schemas, and of one for all."""
    found, chance = Findings(), random.Random(seed)
    ends, shares = await endless(server.port), dict[str, list[float]]()
    for turn in range(turns):
        new = [random_schema(chance) for _ in range(count)]
        for name, schemas in (("a new schema each", new), ("one schema for all", [_ONE] * count)):
            formed = [body_of(schema, turn * count + number) for number, schema in enumerate(schemas)]
            shares.setdefault(name, []).append(await _share(server.port, formed, ends))
    for name, each in shares.items():
        found.counts[f"tokens/s over those of no form, {name}"] = statistics.median(each)
        found.expect(statistics.median(each) >= _LEAST_SHARE, f"{name}: {sorted(each)}")
    return found


def main() -> int:
    """Judge answers, or measure them, and print what was found."""
    parser = arguments(__doc__, 10_000)
    parser.set_defaults(model=str(MODEL))
    parser.add_argument("--turns", type=int, default=0)
    options = parser.parse_args()
    context = str(CONTEXT)
    with serving(options.model, "--parallel", str(STREAMS), "--context", context) as server:
        if options.turns:
            return asyncio.run(measure(server, options.turns, min(options.count, 64), options.seed)).show()
        print(f"{options.count:,} answers of random schemas, seed {options.seed}")
        return asyncio.run(run(server, options.count, options.seed)).show()


if __name__ == "__main__":
    sys.exit(main())
