"""Test names that could mean several things, and what the store does with the names that it has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.index_server import Index
from tests.tiny_starter import FILE, starter_of

from rung.core.errors import BadFile, ModelInUse, NotPulled, RungError
from rung.engine.open_model import open_named
from rung.models import lookup
from rung.models.store import folder, starters
from rung.models.store.folder import Manifest, StoredFile
from rung.models.store.pull import pull_starter


def keep(name: str, digest: str = "a" * 64) -> Manifest:
    """Put the tiny model into the store under a name."""
    manifest = Manifest(name, name, "MIT", "q4_0", "a test", (StoredFile("tiny.gguf", FILE.stat().st_size, digest),))
    manifest.folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(FILE, manifest.path)
    folder.write_manifest(manifest)
    return manifest


def test_a_file_of_a_starters_name_wins_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keep("smollm2")
    shutil.copy(FILE, "smollm2")
    notes: list[str] = []
    assert lookup.find_path("smollm2", on_note=notes.append) == Path("smollm2")
    assert "file or folder here" in notes[0]
    assert lookup.find_missing_starter("smollm2") is None


def test_a_starter_wins_over_the_catalog_and_over_other_programs(tmp_path: Path) -> None:
    """smollm2 is a family of the catalog too, of which the most used size is 1.7B; ollama has it as well."""
    other = tmp_path / "home" / ".lmstudio" / "models" / "me" / "smollm2"
    other.mkdir(parents=True)
    shutil.copy(FILE, other / "smollm2.gguf")
    assert lookup.find_known("smollm2") is None
    with pytest.raises(NotPulled, match="SmolLM2 135M Instruct is not here yet") as caught:
        lookup.find_path("SmolLM2")
    assert caught.value.ways_out[0] == "rung pull smollm2"
    assert lookup.find_outline("smollm2").parameters == 134_515_008
    manifest = keep("smollm2")
    assert lookup.find_path("SmolLM2") == manifest.path


def test_a_starter_is_planned_before_it_is_here() -> None:
    notes: list[str] = []
    card, named = open_named("gemma3-270m", on_note=notes.append)
    assert card.parameters == 268_098_176  # type: ignore[union-attr]
    assert named is None
    assert "rung pull gemma3-270m" in notes[0]


def test_a_model_of_the_catalog_that_is_a_starter_names_it() -> None:
    with pytest.raises(RungError, match="weights are not here") as caught:
        lookup.find_path("smollm2-135m")
    assert caught.value.ways_out[0] == "rung run smollm2"


def test_the_store_has_models_of_the_hub_by_their_names() -> None:
    manifest = keep("org/tiny-GGUF:Q4_0")
    for name in ("org/tiny-GGUF:Q4_0", "ORG/tiny-gguf:q4_0", "org/tiny-GGUF"):
        assert lookup.find_path(name) == manifest.path
    keep("org/tiny-GGUF:Q8_0", "b" * 64)
    assert lookup.find_here("org/tiny-GGUF") is None, "two quantizations: the hub says which is meant"


def test_a_file_removed_by_hand_is_said() -> None:
    manifest = keep("smollm2")
    manifest.path.unlink()
    notes: list[str] = []
    with pytest.raises(NotPulled):
        lookup.find_path("smollm2", on_note=notes.append)
    assert "is gone" in notes[0]
    assert str(manifest.folder) in notes[0]


def test_a_model_that_runs_elsewhere_is_not_removed() -> None:
    manifest = keep("tiny")
    program = (
        "import sys\n"
        "from rung.models.lookup import find_path\n"
        "find_path('tiny')\n"
        "print('used', flush=True)\n"
        "sys.stdin.read()\n"
    )
    user = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdout
    assert user.stdin
    user.stdout.readline()
    with pytest.raises(ModelInUse, match="tiny is in use") as caught:
        folder.remove(manifest)
    assert str(user.pid) in caught.value.facts[0]
    assert manifest.is_whole
    user.stdin.close()
    user.wait()
    assert folder.remove(manifest)
    assert not manifest.folder.exists()
    assert folder.find("tiny") is None


def test_files_that_another_name_has_stay() -> None:
    first, second = keep("one"), keep("two")
    assert not folder.remove(first)
    assert second.is_whole
    assert folder.remove(second)
    assert not second.folder.exists()


def test_a_store_that_cannot_be_written_still_runs_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the system's refusal is made here."""
    manifest = keep("tiny")

    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("unlink", "write_text", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("os.utime", refuse)
    assert lookup.find_path("tiny") == manifest.path
    assert [one.name for one in folder.manifests()[0]] == ["tiny"]
    with pytest.raises(RungError, match="cannot be written") as caught:
        folder.remove(manifest)
    assert "RUNG_MODELS" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"name": "tiny"}', json.dumps({**keep.__annotations__, "files": []}, default=str)]
)
def test_a_broken_manifest_is_named_and_hides_no_other(store: Path, text: str) -> None:
    keep("fine")
    (store / "names" / "tiny.json").write_text(text)
    with pytest.raises(BadFile, match=r"tiny\.json is broken"):
        folder.find("tiny")
    found, notes = folder.manifests()
    assert [one.name for one in found] == ["fine"]
    assert len(notes) == 1


@pytest.mark.parametrize("file", ["../../outside.gguf", "/etc/passwd", "", ".."])
def test_a_manifest_cannot_point_out_of_its_folder(file: str) -> None:
    manifest = keep("tiny")
    folder.write_manifest(Manifest("tiny", "", "", "", "", (StoredFile(file, 1, manifest.files[0].sha256),)))
    with pytest.raises(BadFile):
        folder.find("tiny")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "../names", "CON", "ünï/cödé:Q4", "%2e%2e"])
def test_no_name_leaves_the_folder_of_names(store: Path, name: str) -> None:
    assert folder.find(name) is None
    if len(name) < 100:
        manifest = keep(name)
        assert folder.find(name.upper()) == manifest
        assert [path.parent for path in store.rglob("*.json")] == [store / "names"]


def test_starters_have_cards_of_their_files_sizes() -> None:
    for starter in starters.starters().values():
        card = starters.card_of(starter)
        assert 0 < starter.size - card.weight_bytes < 0.03 * starter.size  # the rest is the header
        assert all(tensor.format for tensor in card.tensors)


def test_pulling_marks_nothing_as_used(index: Index) -> None:
    manifest = pull_starter(starter_of(index))
    assert folder.remove(manifest)
