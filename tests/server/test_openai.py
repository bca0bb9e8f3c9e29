"""Chat and completions through OpenAI's client, beside what the model answers in this process."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import threading
import time

import numpy as np
import openai
import pytest

from tests.server.conftest import DEVICE, serving, stable

HELLO = [{"role": "user", "content": "hello"}]
QUESTION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "a rung?"}]},
]


def joined(stream) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_an_answer_is_what_the_model_says(openai_client, model):
    for messages, texts in ((HELLO, HELLO), (QUESTION, [QUESTION[0], {"role": "user", "content": "What is\na rung?"}])):
        expected = model.chat(texts, max_tokens=12)
        text = "".join(expected)
        answer = openai_client.chat.completions.create(model="demo", messages=messages, max_tokens=12)
        assert answer.choices[0].message.content == text
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason == {"end": "stop", "length": "length"}[expected.result["stop_reason"]]
        assert answer.usage.prompt_tokens == expected.result["prompt_tokens"]
        assert answer.usage.completion_tokens == len(expected.result["tokens"])
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert (answer.model, answer.object) == ("demo", "chat.completion")
        stream = openai_client.chat.completions.create(model="demo", messages=messages, max_tokens=12, stream=True)
        assert joined(stream) == text


def test_answers_in_company_have_the_bytes_of_those_alone(openai_client, model):
    questions = [f"{word} is what?" for word in ("memory", "a GPU", "float16", "quantization", "bfloat16", "CUDA")]
    alone = ["".join(model.generate(each, max_tokens=24, temperature=0.8, seed=5)) for each in questions]
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        stream = openai_client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": questions[number]}],
            max_tokens=24,
            temperature=0.8,
            seed=5,
            stream=True,
        )
        found[number] = joined(stream)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(questions))] == alone


def test_several_choices_are_drawn_apart_and_are_the_same_again(openai_client, model):
    options = {"model": "demo", "messages": HELLO, "n": 3, "seed": 11, "temperature": 1.5, "max_tokens": 12}
    first, second = (openai_client.chat.completions.create(**options) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) > 1
    assert texts[0] == "".join(model.chat(HELLO, seed=11, temperature=1.5, max_tokens=12))
    streamed = ["", "", ""]
    ended = []
    for chunk in openai_client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            ended += [choice.index] if choice.finish_reason else []
    assert streamed == texts
    assert sorted(ended) == [0, 1, 2]
    assert chunk.usage.completion_tokens == first.usage.completion_tokens
    assert chunk.usage.prompt_tokens == first.usage.prompt_tokens


def test_options_change_answers_as_they_do_in_python(openai_client, model):
    plain = "".join(model.chat(HELLO, max_tokens=20))
    first = model.tokenizer.encode(plain, bos=False)[0]
    cases = (
        {"stop": plain[8:12]},
        {"stop": [plain[3:5], "never there"]},
        {"logit_bias": {str(first): -100}},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"temperature": 1.0, "top_p": 0.7, "seed": 3},
    )
    for options in cases:
        answer = openai_client.chat.completions.create(model="demo", messages=HELLO, max_tokens=20, **options)
        keywords = {**options, "stop": [options["stop"]]} if isinstance(options.get("stop"), str) else options
        assert answer.choices[0].message.content == "".join(model.chat(HELLO, max_tokens=20, **keywords)), options
    ours = {"top_k": 3, "min_p": 0.1, "typical_p": 0.9, "repeat_penalty": 1.3, "temperature": 1.2, "seed": 4}
    keywords = {name: ours[name] for name in ("temperature", "seed")}
    more = {name: value for name, value in ours.items() if name not in keywords}
    answer = openai_client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=20, **keywords, extra_body=more
    )
    assert answer.choices[0].message.content == "".join(model.chat(HELLO, max_tokens=20, **ours))


def test_log_probabilities_are_the_models(openai_client, model):
    expected = model.chat(HELLO, max_tokens=5, logprobs=True, top_logprobs=2)
    text = "".join(expected)
    options = {"model": "demo", "messages": HELLO, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    answer = openai_client.chat.completions.create(**options)
    streamed = [
        entry
        for chunk in openai_client.chat.completions.create(**options, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
    ]
    for entries in (answer.choices[0].logprobs.content, streamed):
        assert "".join(entry.token for entry in entries) == text
        for entry, known in zip(entries, expected.result["logprobs"], strict=True):
            assert entry.logprob == pytest.approx(known["logprob"], abs=1e-6)
            assert [like.token for like in entry.top_logprobs] == [like["token"] for like in known["top_logprobs"]]


def test_completions_take_texts_and_token_ids(openai_client, model):
    ids = model.tokenizer.encode("the model")
    text = "".join(model.generate("the model", raw=True, max_tokens=6))
    for prompt in ("the model", ids, ["the model"], [ids]):
        answer = openai_client.completions.create(model="demo", prompt=prompt, max_tokens=6)
        assert [choice.text for choice in answer.choices] == [text], prompt
        assert answer.usage.prompt_tokens == len(ids)
    other = "".join(model.generate("a GPU", raw=True, max_tokens=6))
    answer = openai_client.completions.create(model="demo", prompt=["the model", "a GPU"], max_tokens=6, n=2)
    assert [choice.text for choice in answer.choices] == [text, text, other, other]
    streamed = openai_client.completions.create(model="demo", prompt=["a GPU", "the model"], max_tokens=6, stream=True)
    found = ["", ""]
    for chunk in streamed:
        for choice in chunk.choices:
            found[choice.index] += choice.text
    assert found == [other, text]
    likely = openai_client.completions.create(model="demo", prompt="the model", max_tokens=3, logprobs=2)
    known = model.generate("the model", raw=True, max_tokens=3, logprobs=True, top_logprobs=2)
    list(known)
    assert likely.choices[0].logprobs.tokens == [entry["token"] for entry in known.result["logprobs"]]
    assert likely.choices[0].logprobs.text_offset[0] == 0
    stream = openai_client.completions.create(model="demo", prompt="the model", max_tokens=3, logprobs=2, stream=True)
    said = [chunk.choices[0].logprobs for chunk in stream if chunk.choices[0].logprobs]
    assert [offset for each in said for offset in each.text_offset] == likely.choices[0].logprobs.text_offset


def test_models_and_health_are_there(openai_client, server, model):
    listed = openai_client.models.list().data
    assert [each.id for each in listed] == ["demo"]
    assert listed[0].meta["n_ctx"] == model.plan.context
    assert openai_client.models.retrieve("demo").id == "demo"
    assert server.call("/health")[:2] == (200, {"status": "ok"})
    with pytest.raises(openai.NotFoundError, match="no model 'other'; there is demo"):
        openai_client.chat.completions.create(model="other", messages=HELLO)


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tempratur": 1}, "tempratur", "not supported"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_tokens": 10**40}, "max_tokens", ""),
        ({"n": 17}, "n", "<= 16"),
        ({"temperature": -1}, "temperature", ">= 0"),
        ({"temperature": "hot"}, "temperature", "float"),
        ({"top_p": 1.5}, "top_p", "<= 1"),
        ({"seed": -1}, "seed", ">= 0"),
        ({"stop": ["x"] * 100_000}, "stop", "<= 64"),
        ({"stop": [""]}, "stop[0]", ">= 1"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs=true"),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs", "<= 100"),
        ({"logit_bias": {"hello": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]", "<= 100"),
        ({"logit_bias": {"99999999": 1}}, None, "tokens"),
        ({"messages": []}, "messages", ">= 1"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", ""),
        ({"response_format": {"type": "xml"}}, None, ""),
    ],
)
def test_a_field_that_is_wrong_is_named(server, more, param, words):
    status, answer, _ = server.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, **more})
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert param is None or answer["error"]["param"] == param
    assert words in answer["error"]["message"]


#: Fields of OpenAI's that clients send by themselves, each of which leaves an answer as it is.
INERT = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "me",
    "prompt_cache_key": "a",
    "stream_options": {"include_usage": True},
    "parallel_tool_calls": False,
    "temperature": None,
}
TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}]
QUESTIONS = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 6, "tools": TOOLS},
    "/v1/completions": {"prompt": "the model", "max_tokens": 6},
    "/v1/responses": {"input": "hello", "max_output_tokens": 6},
}


@pytest.mark.parametrize(
    ("path", "field"),
    [(path, field) for path in QUESTIONS for field in INERT if "chat" in path or field != "parallel_tool_calls"],
)
def test_fields_that_change_nothing_are_taken(server, path, field):
    def ask(**more):
        status, answer, _ = server.call(path, QUESTIONS[path] | more)
        assert status == 200, answer
        found = stable(answer)
        found.pop(field, None)  # responses repeat what they were asked
        return found

    ask()  # the next answers go on from what this one has read
    assert ask(**{field: INERT[field]}) == ask()


def test_encoding_format_and_user_leave_embeddings_as_they_are(server):
    """To the byte on a processor; on a card sums depend on what is computed together."""

    def ask(**more):
        return server.call("/v1/embeddings", {"input": ["the model", "a GPU"], **more})[1]

    def vectors(answer):
        return [each["embedding"] for each in answer["data"]]

    plain, far = ask(), 0 if DEVICE == "cpu" else 1e-6
    for answer in (ask(encoding_format="float"), ask(user="me")):
        assert {**answer, "data": []} == {**plain, "data": []}
        np.testing.assert_allclose(vectors(answer), vectors(plain), rtol=0, atol=far)
    packed = [np.frombuffer(base64.b64decode(each), "<f4") for each in vectors(ask(encoding_format="base64"))]
    np.testing.assert_allclose(packed, vectors(plain), rtol=0, atol=far)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"messages": ' * 50_000,
        b'"\xff"',
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"messages":"\\ud800"}',
    ],
)
def test_a_body_that_is_no_request_is_refused(server, body):
    status, answer, _ = server.call("/v1/chat/completions", body, method="POST")
    assert status == 400
    assert answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (
            "/v1/chat/completions",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": -(2**70)}}}]},
        ),
        ("/v1/messages/count_tokens", {"tools": [{"name": "f", "input_schema": {"a": [10**30]}}]}),
    ],
)
def test_a_whole_number_beyond_64_bits_is_refused(server, path, more):
    status, answer, _ = server.call(path, {"model": "demo", "messages": HELLO, **more})
    assert (status, "64 bits" in answer["error"]["message"]) == (400, True)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(server, model):
    ids = model.tokenizer.encode("the model " * 300)
    body = {"prompt": "the model " * 300, "max_tokens": 1}
    status, answer, _ = server.call("/v1/completions", body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert f"{len(ids):,}" in answer["error"]["message"]
    assert f"{model.plan.context:,}" in answer["error"]["message"]
    status, answer, _ = server.call("/v1/completions", {"prompt": [10**9], "max_tokens": 1})
    assert status == 400


def test_the_context_is_for_each_answer_and_never_divided(tmp_path, model):
    ids = [*model.tokenizer.encode("the model runs on the GPU. " * 60)][:250]
    with serving(tmp_path, "demo", "--context", "256", "--parallel", "4") as server:
        assert server.call("/props")[1]["default_generation_settings"]["n_ctx"] == 256
        assert [each["n_ctx"] for each in server.call("/slots")[1]] == [256] * 4
        for number in range(4):
            body = {"prompt": [*ids[number:], *ids[:number]], "max_tokens": 5}
            status, answer, _ = server.call("/v1/completions", body)
            assert (status, answer["usage"]["prompt_tokens"]) == (200, 250), answer
        status, answer, _ = server.call("/v1/completions", {"prompt": [*ids, *ids[:7]], "max_tokens": 1})
        assert (status, answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"]) == (400, 257, 256)


def test_which_of_two_answers_at_the_end_goes_on_must_be_said(server):
    messages = [{"role": "user", "content": "hello"}, *[{"role": "assistant", "content": "The"}] * 2]
    body = {"messages": messages, "max_tokens": 2}
    status, answer, _ = server.call("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert "add_generation_prompt" in answer["error"]["message"]
    for choice in ({"add_generation_prompt": True}, {"continue_final_message": True}):
        assert server.call("/v1/chat/completions", body | choice)[0] == 200
    status, answer, _ = server.call(
        "/v1/chat/completions", body | {"add_generation_prompt": True, "continue_final_message": True}
    )
    assert (status, answer["error"]["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_ends_with_its_client(server, endless, streams):
    """The engine stands still while the client goes. It says then how many steps it has computed, before it hears of
    that: what it computes after that is the step in which it stood still, and one more at most."""
    options = {"prompt": "the", "max_tokens": 480, "n": 8, "temperature": 1, "logit_bias": endless}
    body = json.dumps({**options, "stream": streams}).encode()
    steps: list[float] = []
    reader = threading.Thread(target=lambda: steps.append(server.metric("rung_n_decode_total")))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        until = time.monotonic() + 10
        while not server.metric("rung_requests_processing"):
            assert time.monotonic() < until
        os.kill(server.engine(), signal.SIGSTOP)
        reader.start()
        time.sleep(0.3)
    try:
        time.sleep(0.3)
    finally:
        os.kill(server.engine(), signal.SIGCONT)
    reader.join()
    server.wait_idle()
    assert server.metric("rung_n_decode_total") - steps[0] <= 2


def read_events(content: bytes) -> tuple[str, list[dict]]:
    """The text of a stream, however it is cut, and its other events and those of texts, each kind once."""
    texts, kinds = [], {}
    for each in content.decode().split("\n\n"):
        if not each.startswith("data: {"):
            continue
        event = {name: value for name, value in json.loads(each[6:]).items() if name not in ("id", "created", "rung")}
        for choice in event["choices"]:
            delta, name = (choice["delta"], "content") if "delta" in choice else (choice, "text")
            texts.append(delta.get(name) or "")
            delta[name], choice["logprobs"] = "" if delta.get(name) else delta.get(name), None
        kinds[json.dumps(event)] = event
    return "".join(texts), list(kinds.values())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_comes_in_chunks_or_until_its_connection_closes(server, path):
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": 'say "\u00e9\n'}
    body = json.dumps({**prompt, "max_tokens": 12, "temperature": 1, "seed": 5, "stream": True}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    found = []
    for _ in range(2):  # a connection takes another request after a stream
        connection.request("POST", path, body)
        answer = connection.getresponse()
        assert answer.getheader("transfer-encoding") == "chunked"
        found.append(answer.read())
    connection.close()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        head, _, whole = b"".join(iter(lambda: client.recv(2**16), b"")).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert whole.endswith(b"data: [DONE]\n\n")
    assert read_events(whole) == read_events(found[0]) == read_events(found[1])


def test_pieces_have_the_fields_of_those_with_log_probabilities(server):
    body = {"messages": HELLO, "max_tokens": 12, "stream": True}
    plain, full = (
        read_events(server.call("/v1/chat/completions", {**body, **more})[1].encode())
        for more in ({}, {"logprobs": True})
    )
    assert plain == full


@pytest.mark.parametrize("as_ids", [True, False])
def test_an_echo_has_the_log_probabilities_of_the_prompt(openai_client, model, as_ids):
    """As lm-eval asks for log-likelihoods: token ids, echo, one token; by the logits of the model itself."""
    text = "the model runs on the GPU"
    ids = model.tokenizer.encode(text)
    logits = np.asarray(model.logits(ids), np.float64)
    expected = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    expected -= logits.max(1, keepdims=True)
    answer = openai_client.completions.create(
        model="demo", prompt=ids if as_ids else text, max_tokens=1, logprobs=2, echo=True, temperature=0
    )
    found = answer.choices[0].logprobs
    assert len(found.token_logprobs) == len(ids) + 1
    assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
    for index, token in enumerate(ids[1:], 1):
        assert found.token_logprobs[index] == pytest.approx(expected[index - 1, token], abs=1e-4)
        assert max(found.top_logprobs[index].values()) == pytest.approx(expected[index - 1].max(), abs=1e-4)
    assert answer.choices[0].text.endswith("".join(model.generate(text, raw=True, max_tokens=1)))
    assert text in answer.choices[0].text
    streamed = openai_client.completions.create(
        model="demo", prompt=[text, "a"], max_tokens=3, echo=True, n=2, stream=True
    )
    whole = openai_client.completions.create(model="demo", prompt=[text, "a"], max_tokens=3, echo=True, n=2)
    pieces = ["", "", "", ""]
    for chunk in streamed:
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
    assert pieces == [choice.text for choice in whole.choices]
    alone = openai_client.completions.create(model="demo", prompt=text, max_tokens=0, echo=True)
    assert (alone.choices[0].text, alone.usage.completion_tokens) == (text, 0)
