"""What every test shares: a cache that outlives the session, so that kernels compile and probes run once a version."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rung.kernels.cpu import target

# Read when torch is first imported: threads that spin while they wait cost ten times as much on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session", autouse=True)
def _cache(pytestconfig: pytest.Config) -> Iterator[None]:
    """``RUNG_CACHE`` in pytest's own cache, unless the environment names a folder; ``--cache-clear`` empties it."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("RUNG_CACHE"):
            patch.setenv("RUNG_CACHE", str(pytestconfig.cache.mkdir("rung")))
        target.configure()  # before a test with a cache of its own imports Numba
        yield
