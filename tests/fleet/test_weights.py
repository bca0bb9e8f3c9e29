"""Files of models that a node fetches: piece by piece, checked, and not at all where they are there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from rung.core.errors import DownloadError
from rung.fleet import weights


class _Remote:
    """The head as a node sees it: ``source.read.remote(sha256, offset)`` is awaited."""

    def __init__(self, files: list[weights.ModelFile], spoil: bool = False) -> None:
        self._source, self._spoil, self.count = weights.FileSource(files), spoil, 0

    @property
    def read(self) -> _Remote:
        return self

    async def remote(self, sha256: str, offset: int) -> bytes:
        self.count += 1
        found = self._source.read(sha256, offset)
        return found[:-1] + b"?" if self._spoil else found


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of a model, and its files as another machine knows them: under a path that is not here."""
    monkeypatch.setenv("RUNG_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(weights, "PIECE", 1000)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    files = weights.files_of(folder)

    def move() -> list[weights.ModelFile]:
        return [weights.ModelFile("/not/here/" + each.name, each.name, each.size, each.sha256) for each in files]

    return folder, files, move()


def test_files_that_are_there_are_not_fetched(elsewhere):
    folder, files, _ = elsewhere
    source = _Remote(files)
    assert asyncio.run(weights.fetch(files, source)) == folder
    assert source.count == 0


def test_missing_files_come_in_pieces_and_once(elsewhere):
    folder, files, unknown = elsewhere
    source = _Remote(files)
    found = asyncio.run(weights.fetch(unknown, source))
    for each in folder.iterdir():
        assert (found / each.name).read_bytes() == each.read_bytes()
    assert source.count == 1 + 6
    assert asyncio.run(weights.fetch(unknown, source)) == found
    assert source.count == 7


def test_other_bytes_under_the_same_name_are_fetched_anew(elsewhere):
    folder, files, _ = elsewhere
    whole = (folder / "model.safetensors").read_bytes()
    source = _Remote(files)
    (folder / "model.safetensors").write_bytes(whole[::-1])
    with pytest.raises(DownloadError):  # what the head has is not what it said either
        asyncio.run(weights.fetch(files, source))


def test_bytes_that_are_spoiled_are_refused_and_leave_no_file(elsewhere, tmp_path):
    _, files, unknown = elsewhere
    with pytest.raises(DownloadError, match="other bytes"):
        asyncio.run(weights.fetch(unknown, _Remote(files, spoil=True)))
    assert [each for each in (tmp_path / "models").rglob("*") if each.is_file()] == []


def test_no_other_file_is_read(elsewhere, tmp_path):
    _, files, _ = elsewhere
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(KeyError):
        weights.FileSource(files).read(str(tmp_path / "secret"), 0)


def test_a_file_of_several_parts_is_all_of_them(tmp_path: Path):
    for part in (1, 2):
        (tmp_path / f"m-{part:05d}-of-00002.gguf").write_bytes(b"x" * part)
    found = weights.files_of(tmp_path / "m-00002-of-00002.gguf")
    assert [each.size for each in found] == [1, 2]
