"""Tiny checkpoints, made once a session."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from hub_server import Hub

import tiny


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A function ``(model_type) -> (folder, model)``; the folder must not be changed."""
    folders = {}

    def make(model_type):
        if model_type not in folders:
            folder = tmp_path_factory.mktemp("checkpoints") / model_type
            folders[model_type] = folder, tiny.tiny_checkpoint(folder, model_type)
        return folders[model_type]

    return make


@pytest.fixture
def folder(checkpoints, tmp_path):
    """A folder with a tiny Llama, to be changed."""
    return shutil.copytree(checkpoints("llama")[0], tmp_path / "model")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    found = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", found.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", found.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.chdir(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()
