"""Reasoning: apart from the text in each API, ended by a budget, and refused where a model has none."""

from __future__ import annotations

from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from rung.engine.chat.reasoning import ReasoningBudget, is_open
from tests.server.conftest import serving

HELLO = [{"role": "user", "content": "hello"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "<start_of_turn>model\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(_cache, model, tmp_path_factory):
    """The demo with a template after which it thinks."""
    folder = tmp_path_factory.mktemp("thinker")
    before = model.card.chat_template.encode()
    data, after = Path(model.card.path).read_bytes(), TEMPLATE.encode()
    assert data.count(before) == 1
    padded = after + b"{#" + b" " * (len(before) - len(after) - 4) + b"#}"
    (folder / "thinker.gguf").write_bytes(data.replace(before, padded))
    with serving(folder, str(folder / "thinker.gguf")) as found:
        found.name = str(folder / "thinker.gguf")
        yield found


def test_openais_client_gets_it_apart(thinker):
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as client:
        options = {"model": thinker.name, "messages": HELLO, "max_tokens": 40}
        more = {"thinking_budget_tokens": 5}
        answer = client.chat.completions.create(**options, extra_body=more)
        message = answer.choices[0].message
        assert message.reasoning_content
        assert message.content
        assert "think>" not in message.content + message.reasoning_content
        deltas = [
            chunk.choices[0].delta for chunk in client.chat.completions.create(**options, extra_body=more, stream=True)
        ]
        thought = "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas)
        text = "".join(delta.content or "" for delta in deltas)
        assert (thought, text) == (message.reasoning_content, message.content)
        assert not client.chat.completions.create(**options).choices[0].message.content  # it thinks to the end
        none = client.chat.completions.create(**options, reasoning_effort="none").choices[0].message
        assert none.content
        assert not hasattr(none, "reasoning_content")
        same = {"chat_template_kwargs": {"enable_thinking": False}}
        assert client.chat.completions.create(**options, extra_body=same).choices[0].message.content == none.content
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, 2]}}}
        assert client.chat.completions.create(**options, response_format=schema).choices[0].message.content in "12"


def test_the_server_says_whether_models_think(thinker, tmp_path):
    question = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}
    without = thinker.call("/apply-template", question)[1]["prompt"]
    with serving(tmp_path, thinker.name, "--no-reasoning") as server:
        assert server.call("/apply-template", {"messages": HELLO})[1]["prompt"] == without
        body = {"messages": HELLO, "max_tokens": 8}
        assert server.call("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
        thinks = server.call("/v1/chat/completions", {**body, "reasoning_effort": "low"})[1]
        assert thinks["choices"][0]["message"]["reasoning_content"]


def test_anthropics_client_gets_it_as_a_block(thinker):
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
        options = {"model": thinker.name, "messages": HELLO, "max_tokens": 40}
        on = {"type": "enabled", "budget_tokens": 5}
        answer = client.messages.create(**options, thinking=on)
        assert [block.type for block in answer.content] == ["thinking", "text"]
        with client.messages.stream(**options, thinking=on) as stream:
            final = stream.get_final_message()
        assert [each.to_dict() for each in final.content] == [each.to_dict() for each in answer.content]
        off = client.messages.create(**options, thinking={"type": "disabled"})
        assert [block.type for block in off.content] == ["text"]
        again = [*HELLO, {"role": "assistant", "content": answer.content}, *HELLO]
        assert client.messages.create(**{**options, "messages": again}).usage.output_tokens


def test_ollamas_client_gets_it_apart(thinker):
    client = ollama.Client(host=thinker.url)
    options = {"num_predict": 12}
    answer = client.chat(thinker.name, HELLO, options=options)
    assert answer.message.thinking
    assert not answer.message.content
    parts = list(client.chat(thinker.name, HELLO, options=options, stream=True, think=True))
    assert "".join(part.message.thinking or "" for part in parts) == answer.message.thinking
    off = client.chat(thinker.name, HELLO, options=options, think=False)
    assert off.message.content
    assert off.message.thinking is None
    assert client.generate(thinker.name, "hello", options=options).thinking == answer.message.thinking
    assert client.show(thinker.name).capabilities == ["completion", "tools", "thinking"]


def test_a_model_that_does_not_reason_says_so(server):
    for path, more in (
        ("/v1/chat/completions", {"reasoning_effort": "high"}),
        ("/v1/messages", {"model": "demo", "thinking": {"type": "enabled", "budget_tokens": 9}}),
        ("/api/chat", {"model": "demo", "think": True}),
    ):
        body = {"messages": HELLO, **({} if "api" in path else {"max_tokens": 9}), **more}
        status, answer, _ = server.call(path, body)
        assert (status, "does not reason" in str(answer)) == (400, True)
    wrong = {"messages": HELLO, "max_tokens": 2, "chat_template_kwargs": {"messages": 1}}
    assert server.call("/v1/chat/completions", wrong)[0] == 400


def test_a_budget_lets_only_the_closing_mark_through(model):
    tokenizer, vocabulary = model.tokenizer, model.backend.vocabulary
    opening, close = tokenizer.encode("<think>", bos=False), tokenizer.encode("</think>", bos=False)
    other = tokenizer.encode("the model", bos=False)[:2]
    assert is_open(tokenizer, tokenizer.encode("a <think>\n"))
    assert not is_open(tokenizer, tokenizer.encode("a <think> b"))

    def follows(answer, budget, begun):
        words = ReasoningBudget(tokenizer, vocabulary, budget, begun)(answer)
        return None if words is None else [t for t in range(vocabulary) if int(words[t // 64]) >> (t % 64) & 1]

    answer = list(other)
    for token in close:
        assert follows(answer, 2, True) == [token]
        answer.append(token)
    assert follows(answer, 2, True) is None
    assert follows(other, 3, True) is None
    assert follows(other, 2, False) is None  # it does not reason
    assert follows([*opening, *other], 2, False) == [close[0]]
    assert follows([*opening, other[0]], 2, False) is None  # the opening mark is not of the budget
    assert follows([*other, *close, *other], 9, True) is None
    assert follows([*close, *other], len(close) + 2, True) is None  # closed before
    assert follows([], 0, True) == [close[0]]


def test_responses_have_it_as_an_item(thinker):
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as client:
        options = {"model": thinker.name, "input": "hello", "max_output_tokens": 12}
        answer = client.responses.create(**options)
        (item,) = answer.output
        assert (item.type, item.status) == ("reasoning", "incomplete")
        assert answer.usage.output_tokens_details.reasoning_tokens == 12
        text = "".join(
            each.delta
            for each in client.responses.create(**options, stream=True)
            if each.type == "response.reasoning_text.delta"
        )
        assert text == item.content[0].text
        off = client.responses.create(**options, reasoning={"effort": "none"})
        assert [each.type for each in off.output] == ["message"]
        more = client.responses.create(**options | {"input": "and?"}, previous_response_id=answer.id)
        assert more.usage.input_tokens > answer.usage.input_tokens
