"""Several models: of the command line and of the store, loaded by name and unloaded by plan and by time."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from rung.engine.load import load
from rung.models.store import folder
from rung.models.store.folder import Manifest, StoredFile
from rung.server.model_pool import parse_keep_alive
from tests.server.conftest import serving

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gguf"
#: Holds one of the small models with Python, and no second one.
ROOM_FOR_ONE = "400MB"


@pytest.fixture
def store(_cache, tmp_path, monkeypatch):
    """A store with two models in it, and a third whose file is broken."""
    monkeypatch.setenv("RUNG_MODELS", str(tmp_path / "models"))
    for name, file in {"Org/Tiny:Q4_0": "llama-q4_0.gguf", "gemma": "gemma2-q4_0.gguf"}.items():
        keep(name, (FIXTURES / file).read_bytes())
    keep("broken", b"GGUF" + b"\xff" * 100)


def keep(name: str, data: bytes) -> None:
    manifest = Manifest(
        name, name, "MIT", "q4_0", "a test", (StoredFile("tiny.gguf", len(data), hashlib.sha256(data).hexdigest()),)
    )
    manifest.folder.mkdir(parents=True, exist_ok=True)
    manifest.path.write_bytes(data)
    folder.write_manifest(manifest)


def said(name: str, tokens: int = 6) -> str:
    """Return the answer of a file of the fixtures by itself."""
    return "".join(load(str(FIXTURES / name), device="cpu").generate("the", raw=True, max_tokens=tokens))


def complete(server, model: str, **more):
    status, answer, _ = server.call("/v1/completions", {"model": model, "prompt": "the", "max_tokens": 6, **more})
    return answer["choices"][0]["text"] if status == 200 else (status, answer["error"]["message"])


def statuses(server) -> dict[str, str]:
    return {each["id"]: each["status"]["value"] for each in server.call("/v1/models")[1]["data"]}


def wait_for(server, model: str, status: str) -> None:
    until = time.monotonic() + 20
    while statuses(server)[model] != status:
        assert time.monotonic() < until, statuses(server)
        time.sleep(0.05)


def test_models_of_the_store_are_loaded_by_name_in_all_three_apis(store, tmp_path, model):
    with serving(tmp_path, "demo") as server:
        names = {"demo": "loaded", "broken": "unloaded", "gemma": "unloaded", "Org/Tiny:Q4_0": "unloaded"}
        assert statuses(server) == names
        assert [each["name"] for each in server.call("/api/tags")[1]["models"]] == list(names)
        assert len(server.engines()) == 1
        expected = said("llama-q4_0.gguf")
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.completions.create(model="org/tiny:q4_0", prompt="the", max_tokens=6)
            assert (answer.model, answer.choices[0].text) == ("Org/Tiny:Q4_0", expected)
            assert client.models.retrieve("Org/Tiny:Q4_0").id == "Org/Tiny:Q4_0"
        lama = ollama.Client(host=server.url)
        assert lama.generate("Org/Tiny:Q4_0", "the", raw=True, options={"num_predict": 6}).response == expected
        assert {each.model for each in lama.ps().models} == {"demo", "Org/Tiny:Q4_0"}
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
            hello = [{"role": "user", "content": "hello"}]
            block = claude.messages.create(model="demo", max_tokens=6, messages=hello).content[0]
            assert block.text == "".join(model.chat(hello, max_tokens=6))
            with pytest.raises(anthropic.NotFoundError, match="there is demo, broken, gemma, Org/Tiny:Q4_0"):
                claude.messages.create(model="../../etc/passwd", max_tokens=6, messages=hello)
        assert len(server.engines()) == 2
        with pytest.raises(subprocess.CalledProcessError) as refused:  # another process has it
            subprocess.run([sys.executable, "-m", "rung", "rm", "Org/Tiny:Q4_0"], check=True, capture_output=True)
        assert b"is in use" in refused.value.stderr


def test_with_any_name_an_unknown_one_means_the_first_model(store, tmp_path):
    with serving(tmp_path, str(FIXTURES / "llama-q4_0.gguf"), "--alias", "first", "--any-name") as server:
        status, answer, _ = server.call("/v1/completions", {"model": "gpt-4o", "prompt": "the", "max_tokens": 6})
        assert (status, answer["model"], answer["choices"][0]["text"]) == (200, "first", said("llama-q4_0.gguf"))
        assert complete(server, "gemma") == said("gemma2-q4_0.gguf")  # which is in the store


def test_a_model_that_cannot_be_loaded_costs_its_request_alone(store, tmp_path):
    with serving(tmp_path, "demo") as server:
        for _ in range(2):
            status, message = complete(server, "broken")
            assert (status, "broken" in message or "tiny.gguf" in message) == (503, True)
        assert statuses(server)["broken"] == "unloaded"
        assert server.call("/health")[0] == 200
        assert len(complete(server, "demo")) > 0


def test_models_give_way_to_each_other_where_memory_has_room_for_one(store, tmp_path, endless):
    expected = {"Org/Tiny:Q4_0": said("llama-q4_0.gguf"), "gemma": said("gemma2-q4_0.gguf")}
    with serving(tmp_path, "demo", "--memory", ROOM_FOR_ONE) as server:
        long = {"model": "demo", "prompt": "the", "max_tokens": 300, "logit_bias": endless}
        alone = server.call("/v1/completions", long)[1]["choices"][0]["text"]
        body = json.dumps({**long, "stream": True}).encode()
        found: dict[str, str] = {}

        def read() -> None:
            text = server.call("/v1/completions", body)[1]
            found["demo"] = "".join(
                json.loads(line[6:])["choices"][0]["text"] for line in text.splitlines() if line.startswith("data: {")
            )

        def ask(name: str) -> None:
            found[name] = complete(server, name)

        threads = [threading.Thread(target=read)]
        threads[0].start()
        while not server.metric("rung_requests_processing"):
            time.sleep(0.01)
        threads += [threading.Thread(target=ask, args=(name,)) for name in expected]
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == expected | {"demo": alone}  # a stream that goes on is not cut
        assert sorted(statuses(server).values()).count("loaded") == 1
        assert len(server.engines()) == 1
        assert complete(server, "demo") == alone[: len(complete(server, "demo"))]
        assert "demo is unloaded" in server.said()


def test_keep_alive_unloads_a_model_that_nobody_uses(store, tmp_path):
    with serving(tmp_path, "demo", "--keep-alive", "1h") as server:
        lama = ollama.Client(host=server.url)
        loaded = lama.generate("gemma", keep_alive="10m")
        assert (loaded.done_reason, loaded.response) == ("load", "")
        assert statuses(server)["gemma"] == "loaded"
        assert lama.generate("gemma", "the", raw=True, options={"num_predict": 4}, keep_alive=0).eval_count == 4
        wait_for(server, "gemma", "unloaded")
        assert lama.chat("demo", [], keep_alive=0).done_reason == "unload"
        wait_for(server, "demo", "unloaded")
        assert server.engines() == []
        assert server.call("/health")[0] == 200
        assert server.metric("rung_requests_processing") == 0  # asking does not load it
        assert len(complete(server, "demo")) > 0  # but a request does
        with pytest.raises(ollama.ResponseError, match="keep_alive"):
            lama.generate("gemma", "the", keep_alive="soon")


def test_models_of_the_command_line_that_have_no_room_wait_for_a_request(store, tmp_path):
    second = str(tmp_path / "second.gguf")
    shutil.copy(FIXTURES / "llama-q4_0.gguf", second)
    with serving(tmp_path, "demo", second, "--memory", ROOM_FOR_ONE) as server:
        assert [statuses(server)[name] for name in ("demo", second)] == ["loaded", "unloaded"]
        assert complete(server, second) == said("llama-q4_0.gguf")
        assert [statuses(server)[name] for name in ("demo", second)] == ["unloaded", "loaded"]
    with serving(tmp_path, "demo", second) as server:
        assert [statuses(server)[name] for name in ("demo", second)] == ["loaded", "loaded"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("0", 0), (0, 0), (2.5, 2.5), ("-1", math.inf), ("-5m", math.inf)],
)
def test_keep_alive_takes_what_ollama_takes(text, seconds):
    assert parse_keep_alive(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "5m!", "nan", "m"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_keep_alive(text)


def test_the_command_refuses_what_is_of_one_model(rung):
    refused = rung("serve", "demo", "other", "--draft", "demo")
    assert refused.code == 2
    assert "--draft" in refused.err
    refused = rung("serve", "demo", "--keep-alive", "soon")
    assert refused.code == 2
    assert "--keep-alive soon is no time" in refused.err


def test_a_model_that_is_nowhere_is_refused_with_what_to_serve(rung, tmp_path):
    refused = rung("serve", str(tmp_path / "missing.gguf"), "--port", "0")
    assert refused.code == 2
    assert refused.err.splitlines()[-1].split(maxsplit=1)[1] == "rung serve demo"
