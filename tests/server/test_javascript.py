"""The clients of OpenAI, Anthropic and ollama for JavaScript, compared with the model in this process.

``make test-javascript`` brings them; without them, or without Node.js, this is skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

PACKAGES = Path(__file__).parents[2] / "build" / "javascript"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def found(server, tmp_path):
    """Return the answers of the clients by name."""
    if shutil.which("node") is None or not (PACKAGES / "node_modules" / "openai").exists():
        pytest.skip("no clients for JavaScript here: make test-javascript brings them, Node.js has to be there")
    (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")
    script = shutil.copy(Path(__file__).parent / "clients.mjs", tmp_path)
    done = subprocess.run(["node", script, server.url], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_they_get_what_the_model_says(found, model):
    expected = model.chat(HELLO, max_tokens=9)
    text = "".join(expected)
    for name in ("chat", "stream", "response", "message", "streamed", "lama", "lamas"):
        assert found[name] == text, name
    assert found["tokens"] == len(expected.result["tokens"])
    assert found["counted"] == expected.result["prompt_tokens"]
    assert found["call"]["size"] in ("small", "large")
    assert (found["models"], found["listed"]) == (["demo"], ["demo"])
    assert np.array_equal(np.array(found["embeddings"], np.float32), model.embed(["the model", "a GPU"]))
    assert found["refused"] == [400, "top_p"]
