"""``rung batch --fleet``: each line is answered once, with the bytes of one machine, whatever is killed meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")

from rung.core.errors import UsageError
from rung.engine.batches import Request
from rung.fleet.messages import BatchRequest
from rung.fleet.work import manifest
from rung.fleet.work.answering import served
from rung.fleet.work.batch import message_of

_LINES = 120


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """A file with lines of each kind, one of them wrong."""
    lines = []
    for number in range(_LINES):
        body = {"max_tokens": 24, "temperature": 1, "seed": number}
        if number % 3 == 0:
            body |= {"messages": [{"role": "user", "content": f"number {number}"}]}
            lines.append({"custom_id": f"id{number}", "url": "/v1/chat/completions", "body": body})
        elif number % 3 == 1:
            lines.append({"custom_id": f"id{number}", "url": "/v1/completions", "body": {**body, "prompt": "Once"}})
        else:
            lines.append({"prompt": f"number {number}", **body})
    lines.append({"custom_id": "wrong", "url": "/v1/completions", "body": {"prompt": "a", "nonsense": 1}})
    path = tmp_path_factory.mktemp("batch") / "in.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def _answers(path):
    """Texts of a file of answers by key, without what differs by time; each key once."""
    found = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        key = entry.get("custom_id", entry.get("line"))
        assert key not in found
        body = entry.get("response", {}).get("body", entry)
        body.pop("created", None)
        if "usage" in body:
            body["usage"].pop("prompt_tokens_details")
        found[key] = body
    return found


def test_processes_that_are_killed_cost_no_line_and_double_none(fleet, prompts, tmp_path):
    head, node, _ = fleet
    alone, together = tmp_path / "alone.jsonl", tmp_path / "together.jsonl"
    assert head.rung("batch", str(prompts), str(alone), "--model", "demo", "--context", "512").returncode == 0
    command = ["batch", str(prompts), str(together), "--fleet", "--model", "demo"]
    running = subprocess.Popen(head.command("-m", "rung", *command), env=head.environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not together.exists() or together.read_bytes().count(b"\n") < _LINES // 4:
        assert time.monotonic() < until
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.002)
    running.kill()
    running.wait(30)
    before = together.read_bytes().count(b"\n")
    assert before < _LINES
    os.kill(node.replicas()[0], signal.SIGKILL)
    done = node.rung(*command)
    assert done.returncode == 0, done.stderr
    assert f"{_LINES + 1 - before} answers" in done.stderr
    assert _answers(together) == _answers(alone)
    written = json.loads(manifest.path_of(together).read_text())
    assert written["prompts_sha256"] == hashlib.sha256(prompts.read_bytes()).hexdigest()
    assert written["answers_sha256"] == hashlib.sha256(together.read_bytes()).hexdigest()
    assert (written["total"], written["answers"], written["errors"]) == (_LINES + 1, _LINES + 1, 1)


def test_other_prompts_and_other_options_are_refused(fleet, prompts, tmp_path):
    head, *_ = fleet
    out, other = tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    other.write_text("another prompt\n")
    assert head.rung("batch", str(other), str(out), "--fleet").returncode == 0
    said = head.rung("batch", str(prompts), str(out), "--fleet").stderr
    assert "the file of prompts changed since" in said
    assert "rung fleet up" in head.rung("batch", str(other), str(out), "--fleet", "--context", "99").stderr
    assert "it has demo" in head.rung("batch", str(other), str(out), "--fleet", "--model", "b").stderr


def test_a_batch_of_a_fleet_of_one_model_needs_no_name():
    assert served({"a": {}}, None) == "a"
    with pytest.raises(UsageError, match="names no model"):
        served({"a": {}, "b": {}}, None)


def test_lines_are_asked_as_one_machine_understands_them():
    message = message_of(Request(1, "hi", {"raw": True, "seed": 3, "system": None}), "m")
    assert message == BatchRequest(model="m", prompt="hi", raw=True, options={"seed": 3})
    assert message_of(Request("k", url="/v1/embeddings", texts=("a", "b")), "m").texts == ["a", "b"]
