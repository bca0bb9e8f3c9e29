"""Anthropic's and ollama's clients, embeddings, and llama.cpp's endpoints, beside the model in this process."""

from __future__ import annotations

import anthropic
import numpy as np
import ollama
import pytest

from tests.server.conftest import DEVICE

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def lama(server):
    return ollama.Client(host=server.url)


def test_anthropics_client_gets_what_the_model_says(claude, model):
    for system in (None, "Be brief."):
        messages = [*([{"role": "system", "content": system}] if system else []), *HELLO]
        expected = model.chat(messages, max_tokens=9)
        text = "".join(expected)
        more = {"system": system} if system else {}
        answer = claude.messages.create(model="demo", messages=HELLO, max_tokens=9, **more)
        assert [block.text for block in answer.content] == [text]
        assert answer.stop_reason == {"end": "end_turn", "length": "max_tokens"}[expected.result["stop_reason"]]
        read = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        assert read == expected.result["prompt_tokens"]
        assert answer.usage.output_tokens == len(expected.result["tokens"])
        with claude.messages.stream(model="demo", messages=HELLO, max_tokens=9, **more) as stream:
            assert "".join(stream.text_stream) == text
            final = stream.get_final_message()
        assert (final.stop_reason, final.usage.output_tokens) == (answer.stop_reason, answer.usage.output_tokens)
        counted = claude.messages.count_tokens(model="demo", messages=HELLO, **more)
        assert counted.input_tokens == expected.result["prompt_tokens"]


def test_anthropics_client_hears_of_stop_sequences_and_errors(claude, model):
    plain = "".join(model.chat(HELLO, max_tokens=12))
    answer = claude.messages.create(model="demo", messages=HELLO, max_tokens=12, stop_sequences=["@@", plain[6:9]])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", plain[6:9])
    assert answer.content[0].text == plain[: plain.find(plain[6:9])]
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo", "cache_control": {"type": "ephemeral"}}]
    answer = claude.messages.create(model="demo", messages=[{"role": "user", "content": parts}], max_tokens=12)
    assert answer.content[0].text == "".join(model.chat([{"role": "user", "content": "hel\nlo"}], max_tokens=12))
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(model="demo", messages=HELLO, max_tokens=2, extra_body={"temperature": 1.5})
    with pytest.raises(anthropic.NotFoundError, match="there is demo") as refused:
        claude.messages.create(model="claude", messages=HELLO, max_tokens=2)
    assert refused.value.body["error"]["type"] == "not_found_error"


def test_ollamas_client_gets_what_the_model_says(lama, model):
    text = "".join(model.chat(HELLO, max_tokens=9, temperature=1.0, seed=4, top_k=5))
    options = {"num_predict": 9, "temperature": 1.0, "seed": 4, "top_k": 5}
    answer = lama.chat(model="demo", messages=HELLO, options=options)
    assert (answer.message.content, answer.done, answer.eval_count) == (text, True, 9)
    assert answer.done_reason == "length"
    parts = list(lama.chat(model="demo:latest", messages=HELLO, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == text
    assert [part.done for part in parts[-2:]] == [False, True]
    assert parts[-1].prompt_eval_count == answer.prompt_eval_count
    plain = "".join(model.generate("hello", max_tokens=9))
    assert lama.generate(model="demo", prompt="hello", options={"num_predict": 9}).response == plain
    raw = "".join(model.generate("the model", raw=True, max_tokens=5))
    stream = lama.generate(model="demo", prompt="the model", raw=True, options={"num_predict": 5}, stream=True)
    assert "".join(part.response for part in stream) == raw
    with pytest.raises(ollama.ResponseError, match="num_ctx is not supported"):
        lama.chat(model="demo", messages=HELLO, options={"num_ctx": 4096})


def test_ollamas_client_lists_the_models(lama, model):
    assert [each.model for each in lama.list().models] == ["demo"]
    assert [(each.model, each.context_length) for each in lama.ps().models] == [("demo", model.plan.context)]
    shown = lama.show("demo")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo["general.architecture"] == model.card.decoder.model_type


def same(found, expected) -> bool:
    """Return whether bytes are the same; on a GPU, whose last digits depend on what is computed together, almost."""
    return found.shape == expected.shape and np.allclose(found, expected, rtol=0, atol=0 if DEVICE == "cpu" else 1e-6)


def test_embeddings_are_the_models(openai_client, lama, model, server):
    texts = ["the model", "a GPU with 8 GB", "the model"]
    expected = model.embed(texts)
    for options in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
        answer = openai_client.embeddings.create(model="demo", input=texts, **options)
        assert same(np.array([each.embedding for each in answer.data], np.float32), expected)
        assert answer.usage.prompt_tokens == sum(len(model.tokenizer.encode_whole(text)) for text in texts)
    assert same(np.array(lama.embed(model="demo", input=texts).embeddings, np.float32), expected)
    ids = [model.tokenizer.encode_whole(text) for text in texts]
    answer = openai_client.embeddings.create(model="demo", input=ids)
    assert same(np.array([each.embedding for each in answer.data], np.float32), expected)
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    answer = openai_client.embeddings.create(model="demo", input=ids[1])
    assert same(np.array([each.embedding for each in answer.data], np.float32), expected[1:2])
    mixed = server.call("/v1/embeddings", {"input": [texts[0], ids[1]]})[1]["data"]
    assert same(np.array([each["embedding"] for each in mixed], np.float32), expected[:2])
    for wrong in ([-1], [model.tokenizer.size], [[1], 2], [[]], [1.5], [["a", 2**40]], [2**40]):
        assert server.call("/v1/embeddings", {"input": wrong})[0] == 400
    assert server.call("/v1/embeddings", {"input": []})[0] == 400
    assert server.call("/v1/embeddings", {"input": "long " * 2000})[0] == 400


def test_ollamas_embeddings_cut_a_long_text_unless_they_are_told_not_to(lama, model, server):
    text, context = "long " * 2000, model.plan.context
    assert len(model.tokenizer.encode_whole(text)) > context
    expected = model.embed([text], truncate=True)
    for more in ({}, {"truncate": True}):
        assert same(np.array(lama.embed(model="demo", input=text, **more).embeddings, np.float32), expected)
    tokens = f"{len(model.tokenizer.encode_whole(text)):,}"
    with pytest.raises(ollama.ResponseError, match=f"has {tokens} tokens, the context holds {context:,}") as refused:
        lama.embed(model="demo", input=text, truncate=False)
    assert refused.value.status_code == 400
    short = lama.embed(model="demo", input=["the model"], truncate=False).embeddings
    assert same(np.array(short, np.float32), model.embed(["the model"]))


def test_tokens_of_a_text_and_back(server, model):
    text = "héllo <start_of_turn> 模型"
    ids = model.tokenizer.encode(text, bos=False)
    assert server.call("/tokenize", {"content": text})[1] == {"tokens": ids}
    assert server.call("/tokenize", {"content": text, "add_special": True})[1]["tokens"] == model.tokenizer.encode(text)
    plain = server.call("/tokenize", {"content": text, "parse_special": False})[1]["tokens"]
    assert plain == model.tokenizer.encode(text, bos=False, special=False) != ids
    pieces = server.call("/tokenize", {"content": text, "with_pieces": True})[1]["tokens"]
    parts = [each["piece"] for each in pieces]
    data = b"".join(bytes(part) if isinstance(part, list) else part.encode() for part in parts)
    assert data.decode().strip() == text
    assert server.call("/detokenize", {"tokens": ids})[1]["content"].strip() == text
    assert server.call("/apply-template", {"messages": HELLO})[1] == {"prompt": model.chat_text(HELLO)}


def test_properties_and_slots(server, model):
    found = server.call("/props")[1]
    assert found["default_generation_settings"]["n_ctx"] == model.plan.context
    assert found["chat_template"] == model.card.chat_template
    assert [each["id"] for each in server.call("/slots")[1]] == list(range(found["total_slots"]))
