"""A store of its own for each test, a package index on this machine, and a tiny starter that lies there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.index_server import Index


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty store; no other program has a model, and the hub is closed."""
    monkeypatch.setenv("RUNG_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "models"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """Return an empty index that pip, uv and rung are told to use, and nothing else."""
    made = Index()
    for name in (
        "PIP_FIND_LINKS",
        "PIP_EXTRA_INDEX_URL",
        "UV_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "http_proxy",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    return made
