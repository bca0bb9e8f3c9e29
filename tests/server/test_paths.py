"""Paths beside those that clients' own tests call: other names of the same answers, health and metrics, and none that
takes something in."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rung.server.api import ENDPOINTS
from tests import tiny_encoders
from tests.server.conftest import serving, stable

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gguf"
HELLO = [{"role": "user", "content": "hello"}]
#: llama-server's names for Prometheus, of counters and of gauges.
COUNTERS = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "prompt_seconds_total",
    "tokens_predicted_total",
    "tokens_predicted_seconds_total",
    "n_decode_total",
    "n_tokens_max",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)
GAUGES = (
    "n_busy_slots_per_decode",
    "prompt_tokens_seconds",
    "predicted_tokens_seconds",
    "requests_processing",
    "requests_deferred",
)
#: The first name of a path, its other names, and a body for it.
ALIASES = [
    ("/health", ["/v1/health"], None),
    ("/v1/models", ["/models"], None),
    ("/v1/chat/completions", ["/chat/completions"], {"messages": HELLO, "max_tokens": 4}),
    ("/v1/chat/completions/input_tokens", ["/chat/completions/input_tokens"], {"messages": HELLO}),
    ("/completion", ["/completions"], {"prompt": "the model", "n_predict": 4, "id_slot": 0, "seed": 3}),
    ("/v1/embeddings", ["/embeddings"], {"input": ["the model", "a GPU"]}),
    ("/v1/responses", ["/responses"], {"input": "hello", "max_output_tokens": 4}),
    ("/v1/responses/input_tokens", ["/responses/input_tokens"], {"input": "hello"}),
    (
        "/v1/rerank",
        ["/rerank", "/v1/reranking", "/reranking"],
        {"query": "the cat", "documents": ["a house", "the cat sat", "on a mat"]},
    ),
]


@pytest.fixture(scope="module")
def encoder(_cache, tmp_path_factory):
    """A server of a model that orders documents."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoders.write(folder)
    with serving(folder, str(folder)) as found:
        yield found


@pytest.mark.parametrize(("path", "others", "body"), ALIASES, ids=lambda value: value if isinstance(value, str) else "")
def test_each_name_of_a_path_gives_what_its_first_name_gives(server, request, path, others, body):
    if "rerank" in path:
        server = request.getfixturevalue("encoder")
    server.call(path, body)  # the next answers go on from what this one has read
    status, expected, headers = server.call(path, body)
    assert (status, headers.get_content_type()) == (200, "application/json")
    assert stable(expected)
    for other in others:
        status, document, _ = server.call(other, body)
        assert (status, stable(document)) == (200, stable(expected)), other


def test_no_name_of_a_path_is_left_out():
    """Rows of one handler, as the table says."""
    names: dict[Any, list[str]] = {}
    for row in ENDPOINTS:
        names.setdefault((row.method, getattr(row.handler, "__wrapped__", row.handler)), []).append(row.path)
    several = {frozenset(paths) for paths in names.values() if len(paths) > 1}
    assert several == {frozenset([path, *others]) for path, others, _ in ALIASES}


def test_ollamas_version_is_that_of_rung(server):
    from rung.core.version import __version__

    assert server.call("/api/version")[:2] == (200, {"version": __version__})


@pytest.mark.usefixtures("_cache")
def test_health_is_503_until_the_model_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found: list[tuple[int, str, str | None]] = []
    with serving(tmp_path, "demo", ready=False, port=port) as server:
        until = time.monotonic() + 60
        while not found or found[-1][0] != 200:
            assert time.monotonic() < until
            try:
                status, document, headers = server.call("/health")
            except OSError:  # nobody listens yet
                continue
            found.append((status, str(document), headers["retry-after"]))
            time.sleep(0.02)
    *before, (_, ready, _) = found
    assert before, "the model was loaded before somebody could ask"
    assert {(status, seconds) for status, _, seconds in before} == {(503, "1")}
    assert all("Loading model" in text for _, text, _ in before)
    assert ready == str({"status": "ok"})


def test_a_draft_model_takes_its_memory_and_changes_no_byte(tmp_path, server, rung):
    """It guesses where that saves time."""
    body = {"messages": HELLO, "max_tokens": 60}
    alone = server.call("/v1/chat/completions", body)[1]
    with serving(tmp_path, "demo", "--draft", "demo", "--device", "cpu") as drafting:
        drafting.wait_for(r"demo\.gguf guesses tokens: [\d.]+ [MG]B")
        answer = drafting.call("/v1/chat/completions", body)[1]
    assert stable(answer["choices"]) == stable(alone["choices"])
    small, large = (each["rung"]["predicted"]["memory_bytes"] for each in (alone, answer))
    assert large > small + 1e6
    said = rung("serve", "demo", "--port", "0", "--draft", str(FIXTURES / "llama-q4_0.gguf"))
    assert said.code == 2
    assert "their vocabularies differ" in said.err


def test_metrics_have_the_values_under_both_names(server):
    before = server.metric("llamacpp:tokens_predicted_total")
    status, answer, _ = server.call("/v1/completions", {"prompt": "the", "max_tokens": 5})
    assert status == 200
    text = server.call("/metrics")[1]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    values = dict(re.findall(r"^([a-z]\S*) (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)) == set(kinds) == set(values)
    for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name in names:
            assert kinds[f"llamacpp:{name}"] == kinds[f"rung_{name}"] == kind
            assert float(values[f"llamacpp:{name}"]) == float(values[f"rung_{name}"]) >= 0, name
    assert float(values["llamacpp:tokens_predicted_total"]) - before == answer["usage"]["completion_tokens"] > 0
    assert float(values["llamacpp:prompt_seconds_total"]) > 0
