"""Test fields of llama.cpp: times, how far a prompt is read, settings, parts of prompts and biases."""

from __future__ import annotations

import json

import pytest

from tests.server.conftest import serving

PROMPT = "the model writes one word and " * 12


def events(server, path, body):
    """The documents of a stream."""
    status, text, _ = server.call(path, {**body, "stream": True})
    assert status == 200, text
    lines = [part.partition("data: ")[2] for part in text.split("\n\n") if "data: " in part]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_reading(found, total):
    """The first report has what was known, the last one everything; none goes back."""
    assert found[0]["processed"] == found[0]["cache"]
    assert found[-1]["processed"] == total == found[-1]["total"]
    assert [each["processed"] for each in found] == sorted({each["processed"] for each in found})


def test_a_stream_says_how_far_its_prompt_is_read(server, model):
    body = {"prompt": PROMPT, "n_predict": 3, "return_progress": True, "timings_per_token": True}
    found = events(server, "/completion", body)
    read = [each for each in found if "prompt_progress" in each]
    check_reading([each["prompt_progress"] for each in read], len(model.prompt_ids(PROMPT)))
    assert read[0]["timings"]["prompt_n"] == 0
    pieces = [each["timings"]["predicted_n"] for each in found if each["content"]]
    assert pieces == sorted(pieces)
    assert pieces[-1] == found[-1]["tokens_predicted"] == 3
    messages = [{"role": "user", "content": PROMPT}]
    chat = {"messages": messages, "max_tokens": 3, "return_progress": True, "timings_per_token": True}
    found = events(server, "/v1/chat/completions", chat)
    check_reading(
        [each["prompt_progress"] for each in found if "prompt_progress" in each], len(model.chat_ids(messages))
    )
    assert any("timings" in each for each in found)
    found = events(server, "/v1/responses", {"input": "hello", "max_output_tokens": 2, "return_progress": True})
    assert any("prompt_progress" in each for each in found)
    assert found[-1]["timings"]["predicted_n"] <= 2


def test_settings_are_those_that_the_answer_had(server, model):
    body = {"prompt": "the model", "n_predict": 2, "temperature": 0.5, "top_k": 7, "seed": 11}
    answer = server.call("/completion", {**body, "logit_bias": [[5, False], [6, 1.5]]})[1]
    found = answer["generation_settings"]
    assert {name: found[name] for name in ("temperature", "top_k", "seed", "n_predict")} == {
        "temperature": 0.5,
        "top_k": 7,
        "seed": 11,
        "n_predict": 2,
    }
    assert found["logit_bias"] == [{"token": 5, "bias": None}, {"token": 6, "bias": 1.5}]
    assert answer["prompt"] == model.tokenizer.decode(model.prompt_ids("the model"), special=True)
    chosen = server.call(
        "/completion", {**body, "response_fields": ["content", "generation_settings/n_predict", "x/y"]}
    )
    assert chosen[1] == {"content": answer["content"], "generation_settings/n_predict": 2} or set(chosen[1]) == {
        "content",
        "generation_settings/n_predict",
    }
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    assert "__verbose" not in server.call("/v1/chat/completions", chat)[1]
    verbose = server.call("/v1/chat/completions", {**chat, "verbose": True})[1]["__verbose"]
    assert verbose["prompt"] == model.tokenizer.decode(model.chat_ids(chat["messages"]), special=True)


def test_prompts_have_texts_among_token_ids(server, model):
    ids = model.tokenizer.encode(" one", bos=False)
    whole = [*model.prompt_ids("the"), *ids]
    expected = server.call("/completion", {"prompt": whole, "n_predict": 4})[1]
    for prompt in (["the", *ids], [*model.prompt_ids("the"), " one"]):
        assert server.call("/completion", {"prompt": prompt, "n_predict": 4})[1]["content"] == expected["content"]
    text = server.call("/completion", {"prompt": "the", "n_predict": 4})[1]["content"]
    several = server.call("/completion", {"prompt": ["the", {"prompt_string": "the"}], "n_predict": 4})[1]
    assert [each["content"] for each in several] == [text, text]
    assert server.call("/completion", {"prompt": {"prompt_string": "the", "multimodal_data": ["x"]}})[0] == 400


def test_texts_are_biased_and_ends_forbidden(server, model):
    said = server.call("/completion", {"prompt": "the model", "n_predict": 8, "return_tokens": True})[1]
    word = model.tokenizer.decode(said["tokens"][:1])
    for biases in ([[word, False]], {word: -100}):
        body = {"prompt": "the model", "n_predict": 8, "logit_bias": biases, "return_tokens": True}
        assert said["tokens"][0] not in server.call("/completion", body)[1]["tokens"]
    (end, *_) = model.end_tokens
    forced = {"prompt": "the model", "n_predict": 3, "logit_bias": [[end, 100]]}
    assert server.call("/completion", forced)[1]["stop_type"] == "eos"
    assert server.call("/completion", {**forced, "ignore_eos": True})[1]["stop_type"] == "limit"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion"])
def test_a_prompt_that_is_too_long_has_both_numbers(server, model, path):
    text = "word " * 2000
    body = {"prompt": text} if path == "/completion" else {"messages": [{"role": "user", "content": text}]}
    status, answer, _ = server.call(path, body)
    error = answer["error"]
    assert (status, error["type"], error["code"]) == (400, "exceed_context_size_error", "context_length_exceeded")
    assert error["n_ctx"] == model.plan.context
    assert error["n_prompt_tokens"] > error["n_ctx"]


def _text(answer):
    """Return the text of an answer of OpenAI's, Anthropic's or ollama's endpoints."""
    if "choices" in answer:
        return answer["choices"][0]["message"]["content"]
    return answer["message"]["content"] if "message" in answer else answer["content"][0]["text"]


def test_a_template_may_write_more_than_the_context_holds(server):
    messages = [{"role": "user", "content": "word " * 2000}]
    assert "word " * 1999 in server.call("/apply-template", {"messages": messages})[1]["prompt"]


def test_an_answer_goes_on_from_the_last_message(server, model):
    messages = [{"role": "user", "content": "hello"}]
    begun = [*messages, {"role": "assistant", "content": "I do"}]
    body = {"messages": begun, "max_tokens": 4, "continue_final_message": True}
    found = server.call("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    prompt = model.chat_text(messages) + "I do"
    template = {"messages": begun, "continue_final_message": True}
    assert server.call("/apply-template", template)[1]["prompt"] == prompt
    assert found == "".join(
        model.start(model.chat_ids(messages) + model.tokenizer.encode("I do", bos=False), goes_on=False, max_tokens=4)
    )
    parts = [*messages, {"role": "assistant", "content": [{"type": "text", "text": each} for each in ("I", "do")]}]
    verbose = server.call("/v1/chat/completions", {"messages": parts, "max_tokens": 1, "verbose": True})[1]
    assert verbose["__verbose"]["prompt"].endswith(prompt.replace("I do", "I\n\ndo"))  # as llama-server joins them
    assert server.call("/v1/chat/completions", {**body, "add_generation_prompt": True})[0] == 400
    again = {"model": "demo", "messages": begun, "max_tokens": 4}
    local = {"model": "demo", "messages": begun, "options": {"num_predict": 4}, "stream": False}
    for path, request in (("/v1/chat/completions", again), ("/v1/messages", again), ("/api/chat", local)):
        assert _text(server.call(path, request)[1]) == found, path
    begins = server.call("/apply-template", {"messages": begun, "add_generation_prompt": True})[1]["prompt"]
    assert begins == model.chat_text(begun)
    assert server.call("/v1/chat/completions", {**body, "messages": messages})[0] == 400
    plain = server.call("/apply-template", {"messages": messages, "add_generation_prompt": False})[1]["prompt"]
    assert model.chat_text(messages).startswith(plain)
    assert len(plain) < len(model.chat_text(messages))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Only users speak here.') }}", "Only users speak here."),
        ("{{ messages[0].content / 0 }}", "unsupported operand"),
        ("{% for a in range(10**9) %}{% for b in range(10**9) %}{% endfor %}{% endfor %}", ""),
    ],
    ids=["refuses", "fails", "is endless"],
)
def test_a_template_that_fails_is_a_400_with_its_reason(tmp_path, template, words):
    (tmp_path / "broken.jinja").write_text(template)
    hello = [{"role": "user", "content": "hello"}]
    chat = {"model": "demo", "messages": hello, "max_tokens": 2}
    with serving(tmp_path, "demo", "--chat-template", str(tmp_path / "broken.jinja")) as server:
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", {**chat, "stream": True}),
            ("/v1/messages", chat),
            ("/api/chat", {"model": "demo", "messages": hello}),
            ("/v1/responses", {"input": "hello"}),
            ("/apply-template", {"messages": hello}),
        ):
            status, answer, _ = server.call(path, body)
            assert (status, words in json.dumps(answer), "template" in json.dumps(answer)) == (400, True, True), answer
        assert server.call("/v1/completions", {"prompt": "the", "max_tokens": 2})[0] == 200


def test_another_template_is_read(tmp_path, rung):
    file = tmp_path / "other.jinja"
    file.write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ 'go' if add_generation_prompt }}"
    )
    with serving(tmp_path, "demo", "--chat-template", str(file)) as server:
        messages = [{"role": "user", "content": "hello"}]
        assert server.call("/apply-template", {"messages": messages})[1]["prompt"] == "[user]hellogo"
        assert server.call("/props")[1]["chat_template"] == file.read_text()
        body = {"messages": messages, "max_tokens": 1, "verbose": True}
        assert "[user]hellogo" in server.call("/v1/chat/completions", body)[1]["__verbose"]["prompt"]
    refused = rung("serve", "demo", "--chat-template", str(tmp_path / "none"))
    assert (refused.code, "cannot be read" in refused.err) == (2, True)
