"""llama.cpp's completions and holes, beside the model in this process, and documents in order."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rung.engine.load import load
from rung.engine.tokenizers.tokenizer import infill_ids
from tests import tiny_encoders
from tests.server.conftest import FIM, serving


def test_completions_are_what_the_model_says(server, model):
    expected = model.generate("the model", raw=True, max_tokens=5, logprobs=True, top_logprobs=2)
    text = "".join(expected)
    body = {"prompt": "the model", "n_predict": 5, "n_probs": 2, "return_tokens": True}
    answer = server.call("/completion", body)[1]
    assert (answer["content"], answer["tokens"]) == (text, expected.result["tokens"])
    reason = {"end": "eos", "length": "limit"}[expected.result["stop_reason"]]
    assert (answer["stop"], answer["stop_type"], answer["index"]) == (True, reason, 0)
    assert answer["tokens_evaluated"] == expected.result["prompt_tokens"]
    assert answer["timings"]["predicted_n"] == answer["tokens_predicted"] == len(answer["tokens"])
    assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == answer["tokens_evaluated"]
    likely = answer["completion_probabilities"]
    assert [each["id"] for each in likely][: len(answer["tokens"])] == answer["tokens"]
    assert len(likely) == len(answer["tokens"]) + (reason == "eos")
    assert all(len(each["top_logprobs"]) == 2 for each in likely)
    lines = server.call("/completions", {**body, "stream": True})[1].split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(each["content"] for each in events) == text
    assert [token for each in events for token in each["tokens"]] == answer["tokens"]
    assert [each["stop"] for each in events[-2:]] == [False, True]
    several = server.call("/completion", {"prompt": ["the model", model.prompt_ids("the model")], "n_predict": 5})[1]
    assert [(each["index"], each["content"]) for each in several] == [(0, text), (1, text)]


def test_the_token_that_ends_an_answer_has_log_probabilities(server, model):
    """As llama-server has it, whose clients count on one entry for each token that was chosen."""
    ends = sorted(model.end_tokens)
    ids = model.prompt_ids("the model")
    body = {"prompt": ids, "n_predict": 5, "n_probs": 2, "logit_bias": [[ends[0], 100]]}
    answer = server.call("/completion", {**body, "return_tokens": True})[1]
    assert (answer["content"], answer["stop_type"], answer["tokens"]) == ("", "eos", [])
    (entry,) = answer["completion_probabilities"]
    logits = np.asarray(model.logits(ids), np.float64)[-1]
    expected = logits[ends[0]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert (entry["id"], len(entry["top_logprobs"])) == (ends[0], 2)
    assert entry["logprob"] == pytest.approx(expected, abs=1e-4)
    lines = server.call("/completion", {**body, "stream": True})[1].split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [each.get("completion_probabilities") for each in events] == [[entry], None]
    assert [(each["tokens"], each["content"], each["stop"]) for each in events] == [([], "", False), ([], "", True)]
    plain = server.call("/completion", {**body, "n_probs": 0})[1]
    assert (plain["tokens"], "completion_probabilities" in plain) == ([], False)


def test_options_of_completions(server, model):
    word = "".join(model.generate("the model", raw=True, max_tokens=5))[2:4]
    answer = server.call("/completion", {"prompt": "the model", "n_predict": 5, "stop": [word]})[1]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)
    schema = {"enum": [1, 2]}
    answer = server.call("/completion", {"prompt": "x", "json_schema": schema, "temperature": 2.0, "seed": 1})[1]
    assert (answer["content"] in "12", answer["stop_type"]) == (True, "eos")
    seeded = {"prompt": "the model", "n_predict": 9, "temperature": 1.5}
    said = [server.call("/completion", {**seeded, "seed": seed})[1]["content"] for seed in (3, 3, -1, -1, -1)]
    assert said[0] == said[1]
    assert len(set(said)) > 1
    body = {"prompt": "x", "n_predict": 1, "logit_bias": [[7, 100]], "return_tokens": True}
    assert server.call("/completion", body)[1]["tokens"] == [7]
    for wrong in (
        {},
        {"prompt": "x", "n_keep": 1},
        {"prompt": "x", "n_predict": -2},
        {"prompt": "x", "n_predict": 1, "logit_bias": {"9" * 10: 1}},
        {"prompt": "x", "grammar": 'root ::= "a"', "json_schema": schema},
        {"prompt": []},
    ):
        assert server.call("/completion", wrong)[0] == 400


def test_a_hole_is_filled(coder, tmp_path):
    model = load(str(coder), device="cpu")
    with serving(tmp_path, str(coder)) as server:
        check_holes(server, model)


def check_holes(server, model):
    """The answer goes on from the marks, which are no text."""
    tokenizer = model.tokenizer
    before, after, hole = (tokenizer.encode(mark.decode(), bos=False) for mark in FIM)
    assert [len(each) for each in (before, after, hole)] == [1, 1, 1]

    def encode(text):
        return tokenizer.encode(text, special=False, bos=False)

    ids = [tokenizer.bos, *before, *encode("a GPU "), *encode("with"), *after, *encode("<PRE> GB"), *hole]
    assert infill_ids(tokenizer, "a GPU ", "<PRE> GB", "with") == ids
    body = {"input_prefix": "a GPU ", "prompt": "with", "input_suffix": "<PRE> GB", "n_predict": 6}
    answer = server.call("/infill", body)[1]
    assert answer["content"] == "".join(model.generate(ids, max_tokens=6))
    extra = [{"filename": "a.h", "text": "int x;"}, {"text": "int y;"}]
    snippet = encode("\n\n--- snippet ---\n\n")
    more = [*snippet, *encode("int x;"), *snippet, *encode("int y;"), *ids]
    answer = server.call("/infill", {**body, "input_extra": extra})[1]
    assert answer["content"] == "".join(model.generate(more, max_tokens=6))
    assert answer["tokens_evaluated"] == len(more)
    for wrong in ({"input_extra": [{}]}, {"input_extra": [{"filename": 1, "text": "a"}]}, {"prompt": 1}):
        assert server.call("/infill", {**body, **wrong})[0] == 400


def test_a_model_without_tokens_for_holes_says_so(server):
    status, answer, _ = server.call("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (status, "fills no holes" in answer["error"]["message"]) == (400, True)


def test_documents_are_ordered_by_their_embeddings(tmp_path, server):
    folder = tmp_path / "encoder"
    folder.mkdir()
    tiny_encoders.write(folder)
    texts = ["a house", "the cat sat", "on a mat", "the cat"]
    with serving(tmp_path, str(folder)) as encoder:
        both = encoder.call("/v1/embeddings", {"input": ["the cat", *texts]})[1]
        query, *found = np.array([each["embedding"] for each in both["data"]])
        scores = [float(query @ each / np.linalg.norm(query) / np.linalg.norm(each)) for each in found]
        order = sorted(range(4), key=lambda number: -scores[number])
        ids = encoder.call("/tokenize", {"content": "the cat"})[1]["tokens"]
        whole = encoder.call("/tokenize", {"content": "the cat", "add_special": True})[1]["tokens"]
        assert whole[1:-1] == ids
        text = encoder.call("/detokenize", {"tokens": ids})[1]["content"]
        assert encoder.call("/tokenize", {"content": text})[1]["tokens"] == ids
        mixed = [{"prompt_string": "the cat"}, [whole[0], "the cat", whole[-1]], whole]
        vectors = [each["embedding"] for each in encoder.call("/v1/embeddings", {"input": mixed})[1]["data"]]
        assert vectors == [both["data"][0]["embedding"]] * 3
        answer = encoder.call("/v1/rerank", {"query": "the cat", "documents": texts, "return_documents": True})[1]
        assert [each["index"] for each in answer["results"]] == order
        assert order[0] == 3
        assert answer["results"][0]["document"] == {"text": "the cat"}
        assert [each["relevance_score"] for each in answer["results"]] == pytest.approx([scores[n] for n in order])
        assert answer["usage"]["prompt_tokens"] == both["usage"]["prompt_tokens"]
        listed = encoder.call("/rerank", {"query": "the cat", "texts": texts, "top_n": 2})[1]
        assert [each["index"] for each in listed] == order[:2]
        for wrong in ({"documents": []}, {"documents": [1]}, {}, {"documents": texts, "texts": texts}):
            assert encoder.call("/rerank", {"query": "the cat", **wrong})[0] == 400
    status, answer, _ = server.call("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert (status, "embedding model" in answer["error"]["message"]) == (400, True)
