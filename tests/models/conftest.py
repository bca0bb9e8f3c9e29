"""Tiny checkpoints, made once a session."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A function ``(model_type) -> (folder, model)``; the folder must not be changed."""
    made = {}

    def make(model_type):
        if model_type not in made:
            folder = tmp_path_factory.mktemp("checkpoints") / model_type
            made[model_type] = folder, tiny.tiny_checkpoint(folder, model_type)
        return made[model_type]

    return make


@pytest.fixture
def folder(checkpoints, tmp_path):
    """A folder with a tiny Llama, to be changed."""
    return shutil.copytree(checkpoints("llama")[0], tmp_path / "model")
