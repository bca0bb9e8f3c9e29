"""Tools: a call that is required is always a valid one, streamed or not, and a conversation with calls goes on."""

from __future__ import annotations

import json

import anthropic
import ollama
import pytest

from rung.engine.chat import Template

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


CLAUDES = [
    {"name": "move", "description": "Move there.", "input_schema": MOVE},
    {"name": "stop", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
]


def check_call(name, arguments) -> str:
    if name == "stop":
        assert arguments == {}
    else:
        assert name == "move"
        assert list(arguments) == ["to", "how"]
        assert 0 <= arguments["to"]["x"] <= 9
        assert arguments["how"] in ("fast", "slow")
    return name


def check(call) -> str:
    return check_call(call.function.name, json.loads(call.function.arguments))


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def lama(server):
    return ollama.Client(host=server.url)


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


def test_arguments_that_a_schema_does_not_name_are_not_made_up(openai_client):
    point = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"]}
    schema = {
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/Place"}, "by": {"type": "array", "items": point, "maxItems": 2}},
        "required": ["to", "by"],
        "$defs": {"Place": point},
    }
    free = {"type": "object", "properties": {"to": {"enum": [1]}}, "additionalProperties": {"enum": [2]}}
    options = {"model": "demo", "messages": HELLO, "max_tokens": 200, "seed": 3, "temperature": 3, "n": 8}
    for parameters, closed in ((schema, True), (free, False)):
        tools = [{"type": "function", "function": {"name": "move", "parameters": parameters}}]
        answer = openai_client.chat.completions.create(**options, tools=tools, tool_choice="required")
        calls = [call for each in answer.choices for call in each.message.tool_calls or ()]
        found = [json.loads(call.function.arguments) for call in calls]
        if closed:
            assert len(found) == 8
            assert all(set(each) == {"to", "by"} for each in found)
            assert all(set(point) == {"x"} for each in found for point in (each["to"], *each["by"]))
        else:
            assert any(set(each) - {"to"} for each in found) or len(found) < 8


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


def test_anthropics_client_gets_a_call_that_is_required(claude):
    options = {"model": "demo", "messages": HELLO, "tools": CLAUDES, "max_tokens": 80}
    for choice in ({"type": "any"}, {"type": "tool", "name": "move"}, {"type": "tool", "name": "stop"}):
        answer = claude.messages.create(**options, tool_choice=choice, extra_body={"temperature": 1})
        (block,) = answer.content
        assert (block.type, answer.stop_reason) == ("tool_use", "tool_use")
        assert check_call(block.name, block.input) in choice.get("name", "move stop")
        with claude.messages.stream(**options, tool_choice=choice) as stream:
            kinds = [event.type for event in stream]
            (block,) = stream.get_final_message().content
        assert check_call(block.name, block.input) in choice.get("name", "move stop")
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    plain = claude.messages.create(model="demo", messages=HELLO, max_tokens=8)
    none = claude.messages.create(**{**options, "max_tokens": 8}, tool_choice={"type": "none"})
    assert none.content == plain.content
    counted = claude.messages.count_tokens(model="demo", messages=HELLO, tools=CLAUDES).input_tokens
    read = claude.messages.create(**{**options, "max_tokens": 1}).usage
    assert counted == read.input_tokens + read.cache_read_input_tokens > plain.usage.input_tokens


def test_anthropics_answers_of_a_schema(claude):
    form = {"format": {"type": "json_schema", "schema": {**POINT, "additionalProperties": False}}}
    answer = claude.messages.create(model="demo", messages=HELLO, max_tokens=60, output_config=form)
    assert 0 <= json.loads(answer.content[0].text)["x"] <= 9


@pytest.mark.parametrize("arguments", [{"to": {"x": 1}, "how": "fast"}, "{broken", [], None])
def test_anthropics_conversation_goes_on_after_a_call(claude, arguments):
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I move."},
                {"type": "tool_use", "id": "toolu_1", "name": "move", "input": arguments},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "done"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    options = {"model": "demo", "messages": messages, "tools": CLAUDES}
    assert claude.messages.create(**options, max_tokens=4).usage.output_tokens > 0


def test_ollamas_client_gets_calls_and_goes_on(lama, server):
    def move(x: int) -> str:
        """Move there.

        Args:
            x: The place.
        """
        return str(x)

    assert lama.chat("demo", HELLO, tools=[move], options={"num_predict": 4}).message.content
    body = {"model": "demo", "messages": HELLO, "tools": TOOLS, "tool_choice": "required"}
    lines = server.call("/api/chat", {**body, "options": {"num_predict": 80, "temperature": 1.0, "seed": 3}})[1]
    parts = [ollama.ChatResponse(**json.loads(line)) for line in lines.splitlines()]
    (call,) = [call for part in parts for call in part.message.tool_calls or ()]
    check_call(call.function.name, dict(call.function.arguments))
    assert not any(part.message.content for part in parts)
    assert parts[-1].done_reason == "stop"
    whole = server.call("/api/chat", {**body, "stream": False})[1]
    called = ollama.ChatResponse(**whole).message
    again = [*HELLO, called, {"role": "tool", "tool_name": called.tool_calls[0].function.name, "content": "done"}]
    assert lama.chat("demo", again, options={"num_predict": 4}).eval_count
    broken = {"role": "assistant", "tool_calls": [{"function": {"name": "move", "arguments": "{broken"}}]}
    more = [*HELLO, broken, {"role": "tool", "tool_name": "move", "content": "done"}]
    assert server.call("/api/chat", {"model": "demo", "messages": more, "stream": False})[0] == 200
    none = [{"role": "user", "content": "hello", "images": []}]
    assert server.call("/api/chat", {"model": "demo", "messages": none, "stream": False})[0] == 200
    some = [{"role": "user", "content": "hello", "images": ["aGk="]}]
    assert server.call("/api/chat", {"model": "demo", "messages": some, "stream": False})[0] == 400
    for wrong in ({"tool_choice": "required"}, {"tools": TOOLS, "tool_choice": "required", "format": "json"}):
        assert server.call("/api/chat", {"model": "demo", "messages": HELLO, **wrong})[0] == 400


def test_anthropics_blocks_that_are_not_read_are_refused_by_name(server):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    body = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": [image]}]}
    status, answer, _ = server.call("/v1/messages", body)
    assert (status, "image" in answer["error"]["message"]) == (400, True)
    search = {"type": "web_search_20250305", "name": "web_search"}
    status, answer, _ = server.call("/v1/messages", {**body, "messages": HELLO, "tools": [search]})
    assert (status, "tools" in answer["error"]["message"]) == (400, True)


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


def test_arguments_are_objects(server):
    """A schema that says nothing of its kind is of an object; one of another kind is refused by name."""

    def call(**parameters):
        tools = [{"type": "function", "function": {"name": "go", "parameters": parameters}}]
        request = {"messages": HELLO, "tools": tools, "tool_choice": "required", "max_tokens": 60, "temperature": 3}
        return server.call("/v1/chat/completions", request)[:2]

    for parameters in ({"enum": [1, {}]}, {"enum": [1, {}], "type": ["integer", "object"]}):
        status, answer = call(**parameters)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    status, answer = call(type="array")
    assert (status, "'go' must be of an object" in answer["error"]["message"]) == (400, True)
    status, answer = call(**{"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}})
    assert (status, "cannot be object and array" in answer["error"]["message"]) == (400, True)


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


@pytest.mark.parametrize("depth", [200, 450, 900])
def test_a_tool_that_is_nested_deeply_stops_nobody(server, depth):
    opening, closing = '{"type": "object", "properties": {"a": ', "}}"
    schema = opening * depth + "{}" + closing * depth  # deeper than Python's own writer of JSON goes
    body = {"messages": HELLO, "max_tokens": 4, "tool_choice": "required"}
    tools = f'[{{"type": "function", "function": {{"name": "move", "parameters": {schema}}}}}]'
    data = f'{json.dumps(body)[:-1]}, "tools": {tools}}}'.encode()
    status, answer, _ = server.call("/v1/chat/completions", data)
    assert status == 200 or (status == 400 and answer["error"]["message"]), answer
