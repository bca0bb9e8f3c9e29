"""Random bodies of the forms that ``/openapi.json`` says, and what is wrong with them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

_WORDS = (
    "the model",
    "",
    "a" * 99,
    "\x00",
    "\u202e\ufeff",
    "\U0001f4a3",
    "<|im_end|>",
    "</s>",
    "../etc",
    "{{ 7 * 7 }}",
)
_NUMBERS = (0, 1, -1, 2**31, -(2**31), 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0, 1e-320, 0.5, 3, 16)
#: What no JSON library writes, put in as text.
_RAW = (b"NaN", b"Infinity", b"1e999", b'"\\ud800"', b'"\xff\xfe"', b'"\xc0\xaf"', b"01", b"'a'", b"[1,]", b"nul", b"")
_MARK = "@@raw@@"


class Bodies:
    """Make bodies for the endpoints of a document. Numbers of tokens are small, so that answers end soon."""

    def __init__(self, document: dict[str, Any], chance: random.Random) -> None:
        self._schemas, self._chance = document["components"]["schemas"], chance
        self.paths: list[tuple[str, str, dict[str, Any] | None]] = []
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                self.paths.append((method.upper(), path, content.get("schema")))

    def make(self, schema: dict[str, Any]) -> bytes:
        """Return a body: of the form, or with something wrong in it."""
        value = self._value(schema, 0)
        if isinstance(value, dict):
            self._soon(value)
        wrong = self._chance.random()
        if wrong < 0.3:
            return json.dumps(value).encode()
        if wrong < 0.9:
            for _ in range(self._chance.randint(1, 3)):
                value = self._mutated(value)
            data = json.dumps(value).encode()
            return data.replace(f'"{_MARK}"'.encode(), self._chance.choice(_RAW))
        return self._broken(json.dumps(value).encode())

    def _soon(self, body: dict[str, Any]) -> None:
        """Have answers end after a few tokens, and name the model that is there."""
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"):
            if name in body:
                body[name] = self._chance.randint(1, 8)
        if isinstance(body.get("options"), dict):
            body["options"]["num_predict"] = self._chance.randint(1, 8)
        body.pop("keep_alive", None)
        if "model" in body and self._chance.random() < 0.9:
            body["model"] = "demo"

    def _value(self, schema: dict[str, Any], depth: int) -> Any:
        """Return a value of a schema."""
        chance = self._chance
        if reference := schema.get("$ref"):
            return self._value(self._schemas[reference.rpartition("/")[2]], depth)
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self._value(chance.choice(choices), depth)
        if "enum" in schema:
            return chance.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                items = schema.get("items") or {}
                parts = schema.get("prefixItems")
                if parts:
                    return [self._value(each, depth + 1) for each in parts]
                least = schema.get("minItems", 0)
                return [self._value(items, depth + 1) for _ in range(chance.randint(least, max(least, 3 - depth)))]
            case "string":
                return chance.choice(_WORDS) if chance.random() < 0.7 else chr(chance.randrange(32, 0xD800)) * 3
            case "integer":
                return chance.randint(schema.get("minimum", 0), min(schema.get("maximum", 8), 8))
            case "number":
                return chance.uniform(schema.get("minimum", 0), schema.get("maximum", 2))
            case "boolean":
                return chance.random() < 0.5
            case "null":
                return None
        return chance.choice([None, 1, "a", [], {"type": "string"}, {"a": 1}])

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        chance, required = self._chance, schema.get("required", ())
        share = 0.25 if depth < 4 else 0.0
        found = {
            name: self._value(each, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in required or chance.random() < share or name in ("max_tokens", "n_predict", "model")
        }
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and chance.random() < 0.5:
            found["key"] = self._value(more, depth + 1)
        return found

    def _mutated(self, value: Any) -> Any:
        """Return a value with something else in one place."""
        chance = self._chance
        if isinstance(value, dict) and value and chance.random() < 0.8:
            name = chance.choice(list(value))
            return {**value, name: self._mutated(value[name])}
        if isinstance(value, list) and value and chance.random() < 0.8:
            index = chance.randrange(len(value))
            return [*value[:index], self._mutated(value[index]), *value[index + 1 :]]
        strange: list[Callable[[], Any]] = [
            lambda: chance.choice(_NUMBERS),
            lambda: chance.choice(_WORDS),
            lambda: _MARK,
            lambda: None,
            lambda: [value] * 3,
            lambda: {"unknown": value},
            lambda: chance.choice([True, [], {}, [[]], "9" * 5000]),
            lambda: [value] * 5000 if len(json.dumps(value)) < 100 else value,
            lambda: nested(chance.choice([50, 2000])),
            lambda: schema_of(chance),
        ]
        return chance.choice(strange)()

    def _broken(self, data: bytes) -> bytes:
        """Return bytes that are hardly JSON."""
        chance = self._chance
        index = chance.randrange(len(data) + 1)
        variants = [
            data[:index],
            data[:index] + bytes([chance.randrange(256)]) + data[index:],
            data + data,
            b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16"),
            chance.randbytes(200),
            b'{"prompt": ' * 10**5,
            b"[" * 10**5 + b"]" * 10**5,
            b'{"messages": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
            b'{"response_format": {"type": "json_schema", "json_schema": {"schema": '
            + b'{"not": ' * 10**4
            + b"{}"
            + b"}" * 10**4
            + b'}}, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}',
            b"null",
            b'""',
            b"0",
        ]
        return chance.choice(variants)


def nested(depth: int) -> Any:
    """Return lists in lists (few enough for ``json.dumps``' recursion to write)."""
    value: Any = 1
    for _ in range(min(depth, 200)):
        value = [value]
    return value


def schema_of(chance: random.Random) -> Any:
    """Return a schema that is recursive, contradictory, costly or not enforceable."""
    return chance.choice(
        [
            {"$ref": "#"},
            {"$ref": "#/nowhere"},
            {"$ref": "http://127.0.0.1:1/schema"},
            {"allOf": [{"type": "string"}, {"type": "number"}]},
            {"type": "string", "pattern": "(a|a)*(b|b)*" * 20},
            {"type": "string", "pattern": "(?=a)b"},
            {"type": "string", "minLength": 10**9},
            {"type": "array", "minItems": 10**6, "maxItems": 10**6, "items": {"type": "string"}},
            {"enum": []},
            {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False},
            {"anyOf": [{"type": "object", "properties": {f"p{n}": {"type": "string"}}} for n in range(200)]},
            {"type": "nothing"},
            {"not": {}},
        ]
    )
