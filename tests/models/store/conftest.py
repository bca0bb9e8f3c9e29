"""A store of its own for each test, and a package index on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.index_server import Index
from tests.tiny_starter import use_index, use_store


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty store; no other program has a model, and the hub is closed."""
    return use_store(tmp_path, monkeypatch)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An empty index that pip, uv and rung are told to use, and nothing else."""
    with use_index(monkeypatch) as found:
        yield found
