"""Pulling from the hub: one quantization into the store, checked, going on, beside what the hub's cache has."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.index_server import Index
from tests.tiny_starter import FILE, starter_of

from rung.core.errors import DownloadError, HubError, RungError
from rung.models import hub, lookup
from rung.models.store import folder
from rung.models.store.pull import pull, pull_starter

DATA = FILE.read_bytes()


@pytest.fixture
def repository(store: Path, server):
    """A hub with org/tiny: two quantizations; after the store, whose fixture closes the hub."""
    server.repositories["org/tiny"] = {"tiny-Q4_0.gguf": DATA, "tiny-Q8_0.gguf": DATA + bytes(64), "README.md": b""}
    return server


def test_one_quantization_comes_and_goes_by_its_name(repository, store: Path) -> None:
    path = pull("org/tiny:q4_0")
    assert path.read_bytes() == DATA
    assert store in path.parents
    manifest = folder.find("org/tiny:Q4_0")
    assert manifest is not None
    assert (manifest.format, manifest.files[0].sha256) == ("q4_0", hashlib.sha256(DATA).hexdigest())
    repository.requests.clear()
    assert pull("org/tiny:Q4_0") == lookup.find_path("org/tiny:Q4_0") == path
    assert not repository.requests
    assert folder.remove(manifest)
    assert not list((store / "parts").iterdir())


def test_a_broken_download_goes_on(repository, store: Path) -> None:
    part = store / "parts" / f"hub-{hashlib.sha256(b'org/tiny:q4_0').hexdigest()[:32]}" / "made" / "tiny-Q4_0.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA[:100_000])
    assert pull("org/tiny:Q4_0").read_bytes() == DATA
    ranges = [r for method, path, r in repository.requests if method == "GET" and path.endswith(".gguf")]
    assert ranges
    assert all(one is not None and one.startswith("bytes=100000-") for one in ranges)


def test_what_differs_from_the_hubs_hash_is_thrown_away(repository, store: Path) -> None:
    part = store / "parts" / f"hub-{hashlib.sha256(b'org/tiny:q4_0').hexdigest()[:32]}" / "made" / "tiny-Q4_0.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100_000)
    with pytest.raises(DownloadError, match="did not come as the hub says"):
        pull("org/tiny:Q4_0")
    assert folder.find("org/tiny:Q4_0") is None
    assert pull("org/tiny:Q4_0").read_bytes() == DATA


def test_what_the_hubs_cache_has_is_used_there(repository, store: Path) -> None:
    (there,) = hub.fetch(hub.listing("org/tiny", None, False)[0], ["tiny-Q4_0.gguf"])
    notes: list[str] = []
    assert pull("org/tiny:Q4_0", on_note=notes.append) == there
    assert any("not copied" in note for note in notes)
    assert folder.find("org/tiny:Q4_0") is None


def test_a_starter_comes_from_the_hub_where_no_index_is(repository, index: Index) -> None:
    starter = starter_of(index)
    repository.repositories["org/tiny"]["tiny-q4_0.gguf"] = DATA
    index.server.shutdown()
    index.server.server_close()
    notes: list[str] = []
    manifest = pull_starter(starter, on_note=notes.append)
    assert manifest.path.read_bytes() == DATA
    assert "org/tiny" in manifest.source
    assert "The model hub is asked" in notes[0]


@pytest.mark.parametrize(("variable", "offline"), [("1", False), ("0", True)])
def test_offline_closes_the_hub(repository, monkeypatch: pytest.MonkeyPatch, variable: str, offline: bool) -> None:
    monkeypatch.setenv("RUNG_OFFLINE", variable)
    with pytest.raises(HubError, match="not downloaded"):
        pull("org/tiny:Q4_0", offline=offline)
    assert not repository.requests


def test_an_unknown_quantization_names_those_there(repository) -> None:
    with pytest.raises(RungError, match="has no Q5_K") as caught:
        pull("org/tiny:Q5_K")
    assert "Q4_0" in str(caught.value)
