"""``/v1/responses`` through OpenAI's client: text, streams, calls, forms, conversations that go on, and the store."""

from __future__ import annotations

import json

import openai
import pytest

from rung.server.service import ResponseStore
from tests.server.test_tools import MOVE, POINT, check_call

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [
    {"type": "function", "name": "move", "description": "Move there.", "parameters": MOVE, "strict": True},
    {"type": "function", "name": "stop", "parameters": None, "strict": None},
]


def test_text_is_what_the_model_says(openai_client, model):
    expected = model.chat(HELLO, max_tokens=9)
    text = "".join(expected)
    options = {"model": "demo", "max_output_tokens": 9}
    for inputs in (
        "hello",
        HELLO,
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    ):
        answer = openai_client.responses.create(**options, input=inputs)
        assert answer.output_text == text
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.input_tokens == expected.result["prompt_tokens"]
    assert answer.usage.output_tokens == len(expected.result["tokens"])
    assert answer.output[0].status == "incomplete"
    whole = openai_client.responses.create(model="demo", input="hello", instructions="Be brief.")
    said = "".join(model.chat([{"role": "system", "content": "Be brief."}, *HELLO]))
    assert (whole.output_text, whole.status, whole.output[0].status) == (said, "completed", "completed")
    counted = openai_client.responses.input_tokens.count(model="demo", input="hello", instructions="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens


def test_a_stream_builds_the_same(openai_client):
    options = {"model": "demo", "input": "hello", "max_output_tokens": 9}
    options |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = openai_client.responses.create(**options)
    events = list(openai_client.responses.create(**options, stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    names = [each.type.removeprefix("response.") for each in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert "".join(each.delta for each in events if each.type.endswith("text.delta")) == answer.output_text
    final = events[-1].response
    assert final.output_text == answer.output_text
    assert final.output[0].content == answer.output[0].content
    assert len(final.output[0].content[0].logprobs) == answer.usage.output_tokens
    assert all(len(each.top_logprobs) == 2 for each in final.output[0].content[0].logprobs)
    whole = openai_client.responses.create(model="demo", input="hello")
    with openai_client.responses.stream(model="demo", input="hello") as stream:  # it wants ``completed``
        assert stream.get_final_response().output_text == whole.output_text


def test_a_conversation_goes_on_from_a_response(openai_client, model):
    options = {"model": "demo", "max_output_tokens": 9}
    first = openai_client.responses.create(**options, input="hello", instructions="Be brief.")
    second = openai_client.responses.create(**options, input="and then?", previous_response_id=first.id)
    said = [*HELLO, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "and then?"}]
    assert second.output_text == "".join(model.chat(said, max_tokens=9))
    items = [*HELLO, *(each.to_dict() for each in first.output), {"role": "user", "content": "and then?"}]
    assert openai_client.responses.create(**options, input=items).output_text == second.output_text
    assert openai_client.responses.retrieve(first.id).output_text == first.output_text
    openai_client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="no response"):
        openai_client.responses.create(**options, input="x", previous_response_id=first.id)
    lost = openai_client.responses.create(**options, input="hello", store=False)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(lost.id)


def test_calls_and_their_results(openai_client):
    options = {"model": "demo", "tools": TOOLS, "max_output_tokens": 80}
    for choice in ("required", {"type": "function", "name": "stop"}, {"type": "function", "name": "move"}):
        answer = openai_client.responses.create(**options, input="hello", tool_choice=choice, temperature=2)
        (call,) = answer.output
        assert call.type == "function_call"
        name = check_call(call.name, json.loads(call.arguments))
        assert choice == "required" or choice["name"] == name
    events = list(openai_client.responses.create(**options, input="hello", tool_choice="required", stream=True))
    names = [each.type.removeprefix("response.") for each in events]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1].response
    (call,) = response.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    more = {"model": "demo", "tools": TOOLS, "max_output_tokens": 4}
    one = openai_client.responses.create(**more, input=[result], previous_response_id=response.id)
    two = openai_client.responses.create(**more, input=[*HELLO, call.to_dict(), result])
    assert one.output_text == two.output_text
    broken = {"type": "function_call", "call_id": "c", "name": "move", "arguments": "{broken"}
    again = [*HELLO, broken, {"type": "function_call_output", "call_id": "c", "output": "no"}]
    assert openai_client.responses.create(**more, input=again).usage.output_tokens


def test_forms(openai_client):
    schema = {"type": "json_schema", "name": "point", "schema": {**POINT, "additionalProperties": False}}
    answer = openai_client.responses.create(model="demo", input="hello", text={"format": schema}, temperature=2)
    assert 0 <= json.loads(answer.output_text)["x"] <= 9


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "content"),
        ({"input": [{"type": "function_call", "name": "a"}]}, "call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "input_image"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "unknown": 1}, "unknown"),
        ({"input": "x", "max_tool_calls": 2**64}, "max_tool_calls"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(server, more, named):
    status, answer, _ = server.call("/v1/responses", {"model": "demo", **more})
    assert (status, named in answer["error"]["message"]) == (400, True), answer


def test_a_form_may_have_numbers_of_any_size(server):
    schema = {"type": "integer", "maximum": 2**70}
    form = {"type": "json_schema", "name": "number", "schema": schema}
    body = {"model": "demo", "input": "hello", "max_output_tokens": 4, "text": {"format": form}}
    status, answer, _ = server.call("/v1/responses", body)
    assert (status, answer["text"]["format"]["schema"]) == (200, schema)
    assert server.call(f"/v1/responses/{answer['id']}", None)[1] == answer


def test_the_store_has_an_end_and_owners():
    store = ResponseStore(most=2, most_bytes=1000)
    for name in "ab":
        store.put("me", {"id": name}, [])
    assert store.get("me", "a")
    store.put("me", {"id": "c"}, [])
    assert [store.get("me", name) is not None for name in "abc"] == [True, False, True]
    assert store.get("you", "a") is None
    assert not store.delete("you", "a")
    store.put("me", {"id": "large", "text": "x" * 2000}, [])
    assert store.get("me", "large") is None
    store.put("me", {"id": "d", "text": "x" * 900}, [])
    store.put("me", {"id": "e", "text": "x" * 900}, [])
    assert [store.get("me", name) is not None for name in "ade"] == [False, False, True]
