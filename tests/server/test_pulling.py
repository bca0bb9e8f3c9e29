"""``/api/pull`` and ``/api/delete``: refused, and with --allow-pull in a process of its own."""

from __future__ import annotations

import json
import time

import ollama
import pytest

from rung.models.store import folder, starters
from tests.server.conftest import PLANTED, START_SECONDS, serving
from tests.tiny_starter import publish_as_first, use_index, use_store


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index that holds a tiny model as the starter smollm2, also for the processes of a server."""
    store = use_store(tmp_path, monkeypatch)
    with use_index(monkeypatch) as server:
        publish_as_first(server, tmp_path, monkeypatch)
        monkeypatch.setenv("PLANTED_STARTERS", str(tmp_path / "starters.toml"))
        yield server, store
    starters.starters.cache_clear()


def load(server, name: str) -> None:
    """Have a model loaded, however busy the machine is."""
    until = time.monotonic() + START_SECONDS
    while server.call("/api/generate", {"model": name, "stream": False})[0] == 503:
        assert time.monotonic() < until


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/pull"), ("DELETE", "/api/delete")])
def test_nobody_changes_the_store_without_a_word(server, method, path):
    status, answer, _ = server.call(path, {"model": "smollm2"}, method=method)
    assert (status, "--allow-pull" in answer["error"]) == (403, True)


def test_models_are_pulled_and_deleted(index, tmp_path):
    index_server, store = index
    with serving(tmp_path, "demo", "--allow-pull", first=PLANTED) as server:
        client = ollama.Client(host=server.url)
        steps = list(client.pull("smollm2", stream=True))
        assert [steps[0].status, steps[-1].status] == ["pulling manifest", "success"]
        sizes = [(each.completed, each.total) for each in steps if each.total]
        assert sizes[-1][0] == sizes[-1][1] > 0
        assert client.pull("smollm2:latest").status == "success"  # which is there
        assert {each.model for each in client.list().models} == {"demo", "smollm2"}
        index_server.requests.clear()
        load(server, "smollm2")
        for name in ("../smollm2", "/etc/passwd", "smollm2/../../x", str(store), "nothing-like-that", "a" * 400, "\0"):
            for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
                status, answer, _ = server.call(
                    path, {"model": name, "stream": False} if method == "POST" else {"model": name}, method=method
                )
                assert status in (400, 404), (name, status, answer)
        assert client.delete("SmolLM2").status == "success"
        assert folder.find("smollm2") is None
        assert {each.model for each in client.list().models} == {"demo"}
        with pytest.raises(ollama.ResponseError) as missing:
            client.delete("smollm2")
        assert missing.value.status_code == 404
        assert server.call("/api/delete", {"model": "demo"}, method="DELETE")[0] == 404
        assert server.call("/api/pull", {"model": "smollm2", "insecure": True})[0] == 400
        assert server.call("/api/pull", {})[0] == 400
    assert not index_server.requests


def test_a_pull_that_fails_says_why(index, tmp_path):
    index_server, _ = index
    index_server.wheels.clear()
    with serving(tmp_path, "demo", "--allow-pull", first=PLANTED) as server:
        lines = server.call("/api/pull", {"model": "smollm2"})[1].splitlines()
        assert "error" in json.loads(lines[-1])
        status, answer, _ = server.call("/api/pull", {"model": "smollm2", "stream": False})
        assert status >= 400
        assert answer["error"]
