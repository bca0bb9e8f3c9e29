"""Tools: a call that is required is always a valid one, streamed or not, and a conversation with calls goes on."""

from __future__ import annotations

import json

import pytest

from rung.engine.chat import Template
from rung.server.api.tools import Function, Tool, find_calls, may_begin_call

HELLO = [{"role": "user", "content": "hello"}]
POINT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"]}
MOVE = {
    "type": "object",
    "properties": {"to": {"$ref": "#/$defs/Point"}, "how": {"enum": ["fast", "slow"]}},
    "required": ["to", "how"],
    "additionalProperties": False,
    "$defs": {"Point": {**POINT, "additionalProperties": False}},
}
TOOLS = [
    {"type": "function", "function": {"name": "move", "description": "Move there.", "parameters": MOVE}},
    {"type": "function", "function": {"name": "stop"}},
]
BAD = {"type": "function", "function": {"name": "a", "parameters": {"type": "nothing"}}}


def check(call) -> str:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "stop":
        assert arguments == {}
    else:
        assert call.function.name == "move"
        assert list(arguments) == ["to", "how"]
        assert 0 <= arguments["to"]["x"] <= 9
        assert arguments["how"] in ("fast", "slow")
    return call.function.name


def test_a_required_call_is_valid_at_any_temperature(openai_client):
    options = {"model": "demo", "messages": HELLO, "tools": TOOLS, "max_tokens": 80, "seed": 3, "temperature": 3}
    answer = openai_client.chat.completions.create(**options, n=8, tool_choice="required")
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        check(call)
    for name in ("move", "stop"):
        chosen = {"type": "function", "function": {"name": name}}
        answer = openai_client.chat.completions.create(**options, tool_choice=chosen)
        assert check(answer.choices[0].message.tool_calls[0]) == name
        chunks = list(openai_client.chat.completions.create(**options, tool_choice=chosen, stream=True))
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert [check(call) for call in calls] == [name]
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_that_are_not_called_leave_text(openai_client):
    options = {"model": "demo", "messages": HELLO, "tools": TOOLS, "max_tokens": 8}
    whole = openai_client.chat.completions.create(**options)
    stream = openai_client.chat.completions.create(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (text, "length")
    none = openai_client.chat.completions.create(**options, tool_choice="none")
    plain = openai_client.chat.completions.create(model="demo", messages=HELLO, max_tokens=8)
    assert none.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize("arguments", ['{"to": {"x": 1}, "how": "fast"}', "{broken", "[]", ""])
def test_a_conversation_goes_on_after_a_call_however_it_was_written(openai_client, arguments):
    call = {"id": "call_1", "type": "function", "function": {"name": "move", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    answer = openai_client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, max_tokens=4)
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {
            "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "nothing"}}}],
            "tool_choice": "required",
        },
    ],
)
def test_tools_that_make_no_sense_are_refused(server, more):
    assert server.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 4, **more})[0] == 400


def test_calls_are_found_in_the_forms_that_models_write():
    tools = [Tool("function", Function(name="move")), Tool("function", Function(name="stop"))]
    call = '{"name": "move", "arguments": {"x": 1}}'
    for text in (
        call,
        f" {call}\n",
        f"<tool_call>\n{call}\n</tool_call>",
        f"<tool_call>{call}",
        call.replace("arguments", "parameters"),
    ):
        assert [(each["function"]["name"], each["function"]["arguments"]) for each in find_calls(text, tools)] == [
            ("move", '{"x":1}')
        ]
    two = f"<tool_call>{call}</tool_call>\n<tool_call>" + '{"name": "stop", "arguments": {}}</tool_call>'
    assert [each["function"]["name"] for each in find_calls(two, tools)] == ["move", "stop"]
    for text in (
        "hello",
        f"Well: {call}",
        '{"name": "fly", "arguments": {}}',
        '{"name": "move"}',
        "{",
        "[1]",
        "{" * 10**5,
    ):
        assert find_calls(text, tools) == []
    assert all(map(may_begin_call, ("", " ", "<tool", "<tool_call>x", "{")))
    assert not any(map(may_begin_call, ("a", "<b", "[")))


def test_a_template_that_knows_tools_gets_them_and_another_has_them_described():
    source = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "move", "description": "Move there.", "parameters": POINT}}
    knows, other = Template(source), Template(source.replace("if tools", "if false"))
    assert (knows.has_tools, other.has_tools) == (True, False)
    assert knows.render(HELLO, tools=[tool]).startswith('[{"type": "function"')
    text = other.render(HELLO, tools=[tool])
    assert text.startswith("[system]You may call these functions:\n")
    assert '"name": "move"' in text
    assert other.render(HELLO) == "[user]hello"
