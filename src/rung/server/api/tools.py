"""Functions that an answer may call: how requests name them, how they are enforced and found in a text."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rung.server.api.openai_fields import CallIndex, schema_grammar
from rung.server.errors import ApiError
from rung.server.protocol import Grammar

FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function; ``parameters`` is the JSON schema of its arguments. ``strict`` changes nothing: a call that is
    required is always valid."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=2**16)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Return the schema of its arguments: an object."""
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool: a function, the only kind there is."""

    type: Literal["function"]
    function: Function

    def to_template(self) -> dict[str, Any]:
        """Return it as chat templates read tools."""
        function = {"name": self.function.name, "description": self.function.description or ""}
        return {"type": "function", "function": {**function, "parameters": self.function.schema}}


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: FunctionName


class NamedChoice(msgspec.Struct, forbid_unknown_fields=True):
    """The function that must be called."""

    type: Literal["function"]
    function: _Named


Choice = Literal["none", "auto", "required"] | NamedChoice


def named_choice(name: str) -> NamedChoice:
    """Return the choice of one function."""
    return NamedChoice("function", _Named(name))


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function with its arguments, as JSON in a text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call in a conversation."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: CallIndex | None = None

    def to_template(self) -> dict[str, Any]:
        """Return it as chat templates read calls: arguments as an object, or as they are where they are none."""
        arguments: Any = self.function.arguments
        try:
            found = msgspec.json.decode(arguments)
            arguments = found if isinstance(found, dict) else arguments
        except (msgspec.DecodeError, RecursionError, ValueError):
            pass  # a call that a model wrote badly goes back as it is
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


def call_grammar(tools: Sequence[Tool], choice: Choice | None) -> Grammar | None:
    """Return the form of an answer that must be a call; None where it may be text. Raises ``ApiError``."""
    if choice is not None and not tools:
        raise ApiError(400, "tool_choice needs tools.", param="tool_choice", code="invalid_value")
    if choice in (None, "none", "auto"):
        return None
    listed = [each.function for each in tools]
    if isinstance(choice, NamedChoice):
        listed = [each for each in listed if each.name == choice.function.name]
        if not listed:
            message = f"tool_choice names {choice.function.name!r}, which is none of the tools."
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
    calls = []
    for number, each in enumerate(listed):
        pointer = "#/properties/arguments" if len(listed) == 1 else f"#/anyOf/{number}/properties/arguments"
        fields = {"name": {"const": each.name}, "arguments": _moved(_arguments(each), pointer)}
        calls.append({"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False})
    return schema_grammar(calls[0] if len(calls) == 1 else {"anyOf": calls})


def _arguments(function: Function) -> dict[str, Any]:
    """Return the schema of a function without its name, of objects only. Raises ``ApiError`` where it is of others."""
    schema = {key: value for key, value in function.schema.items() if key != "$id"}
    kinds = schema.get("type") or "object"
    if kinds != "object" and "object" not in (kinds if isinstance(kinds, list) else ()):
        message = f"The parameters of {function.name!r} must be of an object: their `type` is {kinds!r}."
        raise ApiError(400, message, param="tools", code="invalid_value")
    return {**schema, "type": "object"}


#: Keywords whose values are no schemas, and those whose values are schemas by names that are no keywords.
_VALUES = ("const", "enum", "default", "examples")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")


def _moved(schema: Any, pointer: str) -> Any:
    """Return a schema that stands at a pointer in another one, so that its references begin there."""
    if isinstance(schema, list):
        return [_moved(each, pointer) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, each in schema.items():
        if key in _NAMED and isinstance(each, dict):
            found[key] = {name: _moved(part, pointer) for name, part in each.items()}
        else:
            found[key] = each if key in _VALUES else _moved(each, pointer)
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        found["$ref"] = pointer + reference[1:]
    return found


def new_call_id() -> str:
    """Return the name of a call."""
    return f"call_{secrets.token_hex(12)}"
