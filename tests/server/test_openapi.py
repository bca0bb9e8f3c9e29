"""``/openapi.json`` is valid OpenAPI and has every route and every field that bodies are read into."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest

from rung.server.api import ENDPOINTS
from rung.server.api.openapi import document

DOCUMENT = document(ENDPOINTS)
HELLO = [{"role": "user", "content": "hello"}]


def test_it_is_valid_and_served(server):
    validator = pytest.importorskip("openapi_spec_validator")
    served = server.call("/openapi.json")[1]
    assert served == DOCUMENT
    validator.validate(served)


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
def test_every_route_and_field_is_in_it(row):
    path = re.sub(r":\w+\}", "}", row.path)
    operation = DOCUMENT["paths"][path][row.method.lower()]
    assert operation["summary"]
    assert [each["name"] for each in operation.get("parameters", ())] == re.findall(r"\{(\w+)", row.path)
    assert ("security" in operation) == row.needs_key
    if row.body is None:
        assert "requestBody" not in operation
        return
    content = operation["requestBody"]["content"]["application/json"]["schema"]
    struct = row.body
    if content.get("type") == "array":
        content, (struct,) = content["items"], get_args(row.body)
    reference = content["$ref"]
    schema = DOCUMENT["components"]["schemas"][reference.removeprefix("#/components/schemas/")]
    assert set(schema["properties"]) == {field.encode_name for field in msgspec.structs.fields(struct)}
    assert schema["additionalProperties"] is False
    required = {field.encode_name for field in msgspec.structs.fields(struct) if field.required}
    assert set(schema.get("required", ())) == required


def unbounded(schema, path=""):
    """The paths of numbers and lists of a schema that may be of any size."""
    if isinstance(schema, list):
        return [each for number, part in enumerate(schema) for each in unbounded(part, f"{path}/{number}")]
    if not isinstance(schema, dict):
        return []
    ends = {"integer": ("minimum", "maximum"), "number": ("minimum", "maximum"), "array": ("maxItems",)}
    bounds = ends.get(schema.get("type"), ()) if isinstance(schema.get("type"), str) else ()
    inside = [each for name, part in schema.items() for each in unbounded(part, f"{path}/{name}")]
    return [*([path] if not schema.keys() >= set(bounds) else []), *inside]


def test_each_number_and_list_of_a_body_has_bounds():
    """One huge number was a CVE of several servers (2026-34756, 2026-21869)."""
    assert unbounded({"a": {"type": "integer", "minimum": 0}, "b": [{"type": "array"}]}) == ["/a", "/b/0"]
    assert unbounded(DOCUMENT["components"]["schemas"]) == []


def test_it_has_bounds_and_tells_structs_of_one_name_apart():
    schemas = DOCUMENT["components"]["schemas"]
    chats = [name for name in schemas if name.endswith("ChatRequest")]
    assert len(chats) == 2
    assert schemas["RerankRequest"]["properties"]["top_n"]["anyOf"][0]["minimum"] == 1
    assert not any(name.startswith("rung.") for name in schemas)


CALLS = [{"id": "a", "function": {"name": "f", "arguments": "{}"}, "index": 2**40}]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": CALLS}]}, ("index", "4096")),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "chat_template_kwargs": {"a": 2**60}},
            ("kwargs", "9007199254740"),
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "chat_template_kwargs": {"a": -1e300}},
            ("kwargs", "9007199254740"),
        ),
        ("/apply-template", {"messages": HELLO, "chat_template_kwargs": {"a": 1e300}}, ("kwargs", "9007199254740")),
        (
            "/api/chat",
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "index": -1}}]}]},
            ("index", "0"),
        ),
        ("/api/chat", {"messages": HELLO, "keep_alive": 1e300}, ("keep_alive", "1000000000")),
        ("/api/chat", {"messages": HELLO, "keep_alive": "999999999999h"}, ("keep_alive", "1,000,000,000")),
        ("/api/generate", {"prompt": "a", "keep_alive": -(10**10)}, ("keep_alive", "-1000000000")),
        ("/api/generate", {"prompt": "a", "keep_alive": "inf"}, ("keep_alive", "1,000,000,000")),
        ("/api/embed", {"input": "a", "keep_alive": 10**10}, ("keep_alive", "1000000000")),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_field_and_range(server, path, body, said):
    status, answer, _ = server.call(path, {"model": "demo", **body} if path != "/apply-template" else body)
    assert status == 400, answer
    message = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
    assert all(each in message for each in said), message
