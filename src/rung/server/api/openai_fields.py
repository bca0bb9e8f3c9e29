"""Fields that bodies of OpenAI's have in common, with their bounds, and what answers have in common."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rung.core.version import __version__
from rung.engine.openai_forms import options_of, usage
from rung.server.errors import ApiError
from rung.server.protocol import Finished, Grammar, ReasoningOptions
from rung.server.service import Choice

#: Tokens of an answer, answers to a prompt, prompts and messages of a request at most.
MOST_TOKENS, MOST_CHOICES, MOST_PROMPTS, MOST_MESSAGES = 2**24, 16, 512, 4096

Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
TokenId = Annotated[int, Meta(ge=0, le=2**31)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Repeat = Annotated[float, Meta(ge=1e-3, le=1e3)]
#: Characters of a schema, regular expression or grammar at most.
MOST_GRAMMAR = 2**16
#: Digits of the id of a token at most, written as the name of a field.
_MOST_DIGITS = 10
GrammarText = Annotated[str, Meta(min_length=1, max_length=MOST_GRAMMAR)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]


#: How hard a model shall think, in OpenAI's words.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
#: The largest number of a variable of a chat template: readers of JSON tell all integers up to it apart.
_MOST_NUMBER = 2**53
#: The place of a call among those of an answer.
CallIndex = Annotated[int, Meta(ge=0, le=MOST_MESSAGES)]
#: Further variables of a chat template; those that the server fills in have other names.
TemplateKwargs = Annotated[
    dict[
        Annotated[str, Meta(pattern="^(?!(messages|tools|documents|add_generation_prompt|.*_token)$)[a-z_]{1,64}$")],
        Annotated[str, Meta(max_length=1024)]
        | Annotated[int, Meta(ge=-_MOST_NUMBER, le=_MOST_NUMBER)]
        | Annotated[float, Meta(ge=-_MOST_NUMBER, le=_MOST_NUMBER)]
        | bool
        | None,
    ],
    Meta(max_length=32),
]


#: The number of a slot; -1 is any.
SlotNumber = Annotated[int, Meta(ge=-1, le=2**20)]


def named_slot(number: int | None) -> int | None:
    """Return the number of the slot that an answer takes, None for any."""
    return None if number is None or number < 0 else number


def ends_in_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last message is the beginning of an answer, which then goes on: an assistant's text that
    follows other messages, without calls."""
    last = messages[-1] if len(messages) > 1 else {}
    return last.get("role") == "assistant" and bool(last.get("content")) and not last.get("tool_calls")


def reasoning_options(effort: str | None, budget: int | None = None) -> ReasoningOptions:
    """Return how a model thinks; ``none`` is not at all."""
    if effort == "none" or budget == 0:
        return ReasoningOptions(enabled=False)
    return ReasoningOptions(enabled=True if effort else None, budget=budget, effort=effort)


class LoraScale(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter by its place on the command line, and what its change is multiplied with."""

    id: Annotated[int, Meta(ge=0, le=255)]
    scale: Annotated[float, Meta(ge=-100, le=100)]


LoraScales = Annotated[list[LoraScale], Meta(max_length=256)] | None


def lora_scales(scales: LoraScales) -> dict[int, float] | None:
    """Return the scales of adapters by their places; those that are not named have none. None is the server's."""
    return None if scales is None else {each.id: each.scale for each in scales}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_obfuscation`` pads events against those who measure them; nothing here is padded."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """An object of JSON, of any fields; ``schema`` is llama.cpp's addition."""

    schema: dict[str, Any] | None = None


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A named schema. ``strict`` changes nothing: every schema is kept to."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON of a schema."""

    json_schema: JsonSchema


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's forms of an answer."""

    regex: GrammarText | None = None
    grammar: GrammarText | None = None
    json: dict[str, Any] | None = None


def schema_grammar(schema: dict[str, Any]) -> Grammar:
    """Return the grammar of a JSON schema. Raises ``ApiError`` for one that is too large."""
    text = msgspec.json.encode(schema).decode()
    if len(text) > MOST_GRAMMAR:
        raise ApiError(400, f"The schema has more than {MOST_GRAMMAR:,} characters.", code="invalid_value")
    return Grammar("json_schema", text)


class Sampled(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that chat and completion have in common. Those in the second group change nothing of an answer."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Repeat | None = None
    repetition_penalty: Repeat | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=64)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=4096)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: GrammarText | None = None
    lora: LoraScales = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the options of ``Model.chat``."""
        fields = {name: getattr(self, name) for name in Sampled.__struct_fields__}
        return options_of({**fields, "logit_bias": self._biases()})

    def form(self) -> Grammar | None:
        """Return the form that the answer must have, if any. Raises ``ApiError`` for more than one."""
        found: list[Grammar] = []
        match self.response_format:
            case JsonObjectFormat(schema=schema):
                found.append(schema_grammar(schema or {"type": "object"}))
            case JsonSchemaFormat(json_schema=named):
                found.append(schema_grammar(named.schema))
        if self.grammar is not None:
            found.append(Grammar("gbnf", self.grammar))
        if self.json_schema is not None:
            found.append(schema_grammar(self.json_schema))
        if (more := self.structured_outputs) is not None:
            found += [] if more.regex is None else [Grammar("regex", more.regex)]
            found += [] if more.grammar is None else [Grammar("gbnf", more.grammar)]
            found += [] if more.json is None else [schema_grammar(more.json)]
        if len(found) > 1:
            message = "An answer has one form: response_format, json_schema, grammar or structured_outputs."
            raise ApiError(400, message, param="response_format", code="invalid_value")
        return found[0] if found else None

    def _biases(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        for token in self.logit_bias:
            if not is_token_id(token):
                raise ApiError(400, f"logit_bias: {token!r} is no token id.", param="logit_bias", code="invalid_value")
        return {int(token): bias for token, bias in self.logit_bias.items()}

    @property
    def includes_usage(self) -> bool:
        """Return whether a stream ends with what it cost; an answer that is whole always says so."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def is_token_id(text: str) -> bool:
    """Return whether a key is the id of a token."""
    return len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()


#: What OpenAI has to tell which program answered.
FINGERPRINT = {"system_fingerprint": f"build-rung-{__version__}"}


def new_id(kind: str) -> str:
    """Return the name of an answer."""
    return f"{kind}-{secrets.token_hex(12)}"


def usage_of(prompt_tokens: int, ends: Iterable[Finished]) -> dict[str, Any]:
    """Return the token counts of answers to prompts of so many tokens, as OpenAI counts them."""
    listed = list(ends)
    cached = min(sum(end.cached_tokens for end in listed), prompt_tokens)
    return usage(prompt_tokens, sum(end.completion_tokens for end in listed), cached)


def ends_of(choices: Sequence[Choice]) -> list[Finished]:
    """Return the ends of answers."""
    return [choice.end for choice in choices]
