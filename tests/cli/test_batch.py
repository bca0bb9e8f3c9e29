"""``rung batch``: what lines may say, what is written of each answer, and that a stopped run goes on."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest


def chat(key: str, **body) -> str:
    """A line of OpenAI's batches."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **body}
    return json.dumps({"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body})


def answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def files(tmp_path):
    """The file of prompts, written from lines, and that of answers."""

    def write(*lines: str):
        (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")

    return write


def test_lines_of_openai_get_what_openai_answers(rung, files, tmp_path):
    completion = json.dumps(
        {"custom_id": "b", "url": "/v1/completions", "body": {"model": "demo", "prompt": "the model", "max_tokens": 3}}
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    parts.insert(0, {"role": "developer", "content": "be short"})
    paths = files(chat("a", max_completion_tokens=6, max_tokens=None, user="me"), completion, chat("c", messages=parts))
    assert rung("batch", *paths, "--quiet").code == 0
    found = {entry["custom_id"]: entry for entry in answers(tmp_path / "out.jsonl")}
    assert found.keys() == {"a", "b", "c"}
    assert all(entry["error"] is None and entry["response"]["status_code"] == 200 for entry in found.values())
    first, second, third = (found[key]["response"]["body"] for key in "abc")
    answer = json.loads(rung("run", "demo", "hello", "--max-tokens", "6", "--json").out)
    assert first["choices"][0]["message"] == {"role": "assistant", "content": answer["text"]}
    assert first["choices"][0]["finish_reason"] == "length"
    assert (first["object"], first["model"]) == ("chat.completion", "demo")
    assert first["usage"]["completion_tokens"] == 6
    assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + 6
    raw = json.loads(rung("run", "demo", "the model", "--raw", "--max-tokens", "3", "--json").out)
    assert second["choices"][0]["text"] == raw["text"]
    assert second["object"] == "text_completion"
    lines = json.loads(rung("run", "demo", "hel\nlo", "--system", "be short", "--max-tokens", "4", "--json").out)
    assert third["choices"][0]["message"]["content"] == lines["text"], "parts are lines, as over HTTP"


def _embedding(key: str, **body) -> str:
    return json.dumps({"custom_id": key, "url": "/v1/embeddings", "body": {"model": "demo", **body}})


def test_embeddings_as_openai_has_them(rung, files, tmp_path):
    import rung as library

    lines = [
        _embedding("a", input="hello"),
        chat("b"),
        _embedding("c", input=["hello there", "hello"], encoding_format="base64", user="me"),
        _embedding("d", input=[1, 2]),
        _embedding("e", input="hello", dimensions=8),
        _embedding("f", input=["hello", "word " * 5000]),
        _embedding("g", input="hello", encoding_format="hex"),
    ]
    assert rung("batch", *files(*lines), "--quiet").code == 0
    found = {entry["custom_id"]: entry["response"] for entry in answers(tmp_path / "out.jsonl")}
    statuses = {key: entry["status_code"] for key, entry in found.items()}
    assert statuses == {**dict.fromkeys("abc", 200), **dict.fromkeys("defg", 400)}
    model = library.load("demo")
    want = model.embed(["hello", "hello there"])
    first, second = found["a"]["body"], found["c"]["body"]
    assert (first["object"], first["model"], first["data"][0]["index"]) == ("list", "demo", 0)
    assert first["data"][0]["embedding"] == want[0].tolist()
    assert first["usage"]["total_tokens"] == len(model.tokenizer.encode_whole("hello"))
    packed = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in second["data"]]
    assert [each["index"] for each in second["data"]] == [0, 1]
    assert np.array_equal(np.stack(packed), want[::-1])
    reasons = {key: found[key]["body"]["error"]["message"] for key in "defg"}
    assert "neither a text nor a list" in reasons["d"]
    assert reasons["e"] == "dimensions is not supported"
    assert "the context holds" in reasons["f"]
    assert "'hex' is none of float and base64" in reasons["g"]


def test_an_encoder_answers_lines_for_embeddings_and_no_others(rung, files, tmp_path):
    pytest.importorskip("torch")
    from tests import tiny_encoders

    folder = tiny_encoders.write(tmp_path / "bert")
    paths = files(_embedding("a", input="word1"), chat("b"), "hello")
    assert rung("batch", *paths, "--model", str(folder), "--quiet").code == 0
    found = {entry.get("custom_id"): entry for entry in answers(tmp_path / "out.jsonl")}
    assert len(found["a"]["response"]["body"]["data"][0]["embedding"]) == 64
    assert "is an encoder" in found["b"]["response"]["body"]["error"]["message"]
    assert "is an encoder" in found[None]["error"]


def test_log_probabilities_as_openai_has_them(rung, files, tmp_path):
    completion = {"prompt": "the model", "max_tokens": 3, "logprobs": 2}
    lines = [
        chat("a", logprobs=True, top_logprobs=2),
        json.dumps({"custom_id": "b", "url": "/v1/completions", "body": {"model": "demo", **completion}}),
        chat("c", logit_bias={"67": 100}, presence_penalty=0.5, frequency_penalty=0.5, typical_p=0.9, temperature=0),
    ]
    assert rung("batch", *files(*lines), "--quiet").code == 0
    found = {entry["custom_id"]: entry["response"]["body"] for entry in answers(tmp_path / "out.jsonl")}
    chosen, completed, biased = (found[key]["choices"][0] for key in "abc")
    entries = chosen["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == chosen["message"]["content"]
    assert all(entry.keys() == {"token", "bytes", "logprob", "top_logprobs"} for entry in entries)
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] for entry in entries), "greedy"
    assert completed["logprobs"].keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    for token, at in zip(completed["logprobs"]["tokens"], completed["logprobs"]["text_offset"], strict=True):
        assert completed["text"][at:].startswith(token)
    assert [len(each) for each in completed["logprobs"]["top_logprobs"]] == [2, 2, 2]
    assert biased["message"]["content"] == "````"
    assert biased["logprobs"] is None


def test_plain_lines(rung, files, tmp_path):
    paths = files("hello", '"hello"', '{"prompt": "hello", "max_tokens": 4}', "", '{"prompt": "the", "raw": true}')
    assert rung("batch", *paths, "--model", "demo", "--quiet").code == 0
    found = {entry["line"]: entry for entry in answers(tmp_path / "out.jsonl")}
    assert found.keys() == {1, 2, 3, 5}
    assert found[1]["text"] == found[2]["text"] != found[3]["text"]
    assert found[1]["text"].startswith(found[3]["text"])
    assert found[3]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"frequency_banana": 1}, "frequency_banana is not supported"),
        ({"logit_bias": {"3": 200}}, "logit-bias"),
        ({"presence_penalty": 5}, "presence-penalty 5 makes no sense"),
        ({"n": 2}, "n 2 is not supported"),
        ({"stream": True}, "stream True is not supported"),
        ({"max_tokens": 0}, "max_tokens 0 makes no sense"),
        ({"max_tokens": "many"}, "max_tokens 'many' makes no sense"),
        ({"temperature": -1}, "temperature -1 makes no sense"),
        ({"stop": [1]}, "stop is neither"),
        ({"messages": []}, "messages are no list"),
        ({"messages": [{"content": "x"}]}, "no role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content that is no text"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "The prompt has"),
    ],
)
def test_what_cannot_be_answered_says_why_and_the_others_go_on(rung, files, tmp_path, body, says):
    said = rung("batch", *files(chat("a"), chat("b", **body), chat("c")))
    assert said.code == 0
    assert "3 answers" in said.err
    assert "1 of them errors" in said.err
    found = {entry["custom_id"]: entry["response"] for entry in answers(tmp_path / "out.jsonl")}
    assert [found[key]["status_code"] for key in "abc"] == [200, 400, 200]
    assert says in found["b"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["hello"], "do not name one model"),
        ([chat("a"), chat("b", model="other")], "they name demo, other"),
        ([chat("a"), chat("a")], "line 2: custom_id 'a' is there twice"),
        ([chat("a"), '{"custom_id": '], "line 2 begins like JSON and is none"),
        (['{"body": {}}'], "has no custom_id"),
        ([""], "has no prompt"),
    ],
)
def test_files_that_make_no_sense_are_refused_before_a_model_is_loaded(rung, files, tmp_path, lines, says):
    said = rung("batch", *files(*lines))
    assert said.code == 2
    assert says in said.err
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_that_is_missing_and_one_that_is_no_file_of_answers(rung, files, tmp_path):
    paths = files(chat("a"))
    assert "cannot be read" in rung("batch", str(tmp_path / "none"), paths[1]).err
    (tmp_path / "letter.txt").write_text("Dear all,\n")
    said = rung("batch", paths[0], str(tmp_path / "letter.txt"))
    assert said.code == 1 or said.code == 2
    assert "no file of answers" in said.err
    assert (tmp_path / "letter.txt").read_text() == "Dear all,\n"


def test_a_model_that_is_not_there_leaves_no_file_of_answers(rung, files, tmp_path):
    said = rung("batch", *files(chat("a")), "--model", "nothere", "--offline")
    assert said.code == 2
    assert not (tmp_path / "out.jsonl").exists()


def test_what_is_answered_is_not_answered_again(rung, files, tmp_path):
    paths = files(*(chat(str(number)) for number in range(5)))
    rung("batch", *paths, "--quiet")
    whole = (tmp_path / "out.jsonl").read_bytes()
    assert rung("batch", *paths, "--quiet").code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    lines = whole.splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])  # killed while it wrote the third
    assert "has 2 answers: going on" in rung("batch", *paths).err
    again = answers(tmp_path / "out.jsonl")
    assert [entry["custom_id"] for entry in again[:2]] == [json.loads(line)["custom_id"] for line in lines[:2]]
    texts = [
        {e["custom_id"]: e["response"]["body"]["choices"] for e in rows} for rows in (again, map(json.loads, lines))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_goes_on(files, tmp_path, number):
    paths = files(*(chat(str(at), max_tokens=40) for at in range(150)))
    command = [sys.executable, "-m", "rung", "batch", *paths, "--quiet"]
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 2):
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.communicate()
    done = out.read_bytes().count(b"\n")
    assert 2 < done < 150
    subprocess.run(command, check=True)
    found = answers(out)
    assert len({entry["custom_id"] for entry in found}) == len(found) == 150


def test_two_at_once_do_not_mix(files, tmp_path, rung):
    paths = files(chat("a"))
    from rung.engine.batches import opened

    with opened(tmp_path / "out.jsonl", "demo"):
        assert "Another process writes" in rung("batch", *paths).err
