"""Models of ollama, LM Studio and the hub's cache: found by the names that those programs use, whole ones only."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.tiny_starter import FILE

from rung.models import lookup
from rung.models.store import elsewhere

DATA = FILE.read_bytes()
DIGEST = hashlib.sha256(DATA).hexdigest()


def ollama(root: Path, path: str, size: int = len(DATA)) -> Path:
    """Lay out a model as ollama does."""
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    blob = root / "blobs" / f"sha256-{DIGEST}"
    blob.write_bytes(DATA)
    (root / "blobs" / f"sha256-{'c' * 64}").write_text(json.dumps({"file_type": "Q4_0"}))
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'a' * 64}", "size": 5},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}", "size": size},
    ]
    manifest = root / "manifests" / path
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"config": {"digest": f"sha256:{'c' * 64}"}, "layers": layers}))
    return blob


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("registry.ollama.ai/library/tiny/1b", ["tiny:1b", "Tiny:1B"]),
        ("registry.ollama.ai/library/tiny/latest", ["tiny:latest", "tiny"]),
        ("registry.ollama.ai/me/tiny/latest", ["me/tiny", "me/tiny:latest"]),
        ("hf.co/org/tiny-GGUF/Q4_0", ["hf.co/org/tiny-GGUF:Q4_0"]),
    ],
)
def test_ollama(tmp_path: Path, path: str, names: list[str]) -> None:
    blob = ollama(tmp_path / "home" / ".ollama" / "models", path)
    for name in names:
        found = elsewhere.find(name)
        assert found is not None, name
        assert (found.path, found.program, found.format, found.size) == (str(blob), "ollama", "q4_0", len(DATA))
        notes: list[str] = []
        assert lookup.find_path(name, on_note=notes.append) == blob
        assert "ollama" in notes[0]
    assert lookup.find_card(names[0]).decoder.model_type == "llama"


def test_what_ollama_has_not_finished_or_written_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "elsewhere"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    ollama(root, "registry.ollama.ai/library/half/latest", size=len(DATA) + 1)
    for name, text in {"broken": "{", "list": "[]", "empty": '{"layers": []}', "odd": '{"layers": [{}]}'}.items():
        path = root / "manifests/registry.ollama.ai/library" / name / "latest"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert elsewhere.models() == []


@pytest.mark.parametrize(
    "name", ["me/Tiny-GGUF/Tiny-Q4_0.gguf", "me/tiny-gguf", "me/Tiny-GGUF:q4_0", "Tiny-Q4_0", "tiny-q4_0.gguf", "tiny"]
)
def test_lm_studio(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "home" / ".lmstudio" / "models" / "me" / "Tiny-GGUF"
    folder.mkdir(parents=True)
    (folder / "Tiny-Q4_0.gguf").write_bytes(DATA)
    (folder / "mmproj-Tiny-f16.gguf").write_bytes(DATA)
    (folder / "Big-Q4_0-00001-of-00002.gguf").write_bytes(DATA)  # its second part is missing
    assert [one.name for one in elsewhere.models()] == ["me/Tiny-GGUF/Tiny-Q4_0.gguf"]
    assert lookup.find_path(name) == folder / "Tiny-Q4_0.gguf"


def test_a_name_that_two_files_share_is_none(tmp_path: Path) -> None:
    for label in ("Q4_0", "Q8_0"):
        folder = tmp_path / "home" / ".lmstudio" / "models" / "me" / "Tiny-GGUF"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"Tiny-{label}.gguf").write_bytes(DATA)
    assert elsewhere.find("tiny") is None
    found = elsewhere.find("me/tiny-gguf:q8_0")
    assert found is not None
    assert found.path.endswith("Tiny-Q8_0.gguf")


def test_the_hubs_cache_is_used_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hub" / "models--org--tiny-GGUF"
    for commit in ("old", "new"):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "tiny-Q4_0.gguf").write_bytes(DATA)
    (folder / "snapshots" / "new" / "gone-Q8_0.gguf").symlink_to(tmp_path / "nowhere")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("new")
    assert [one.name for one in elsewhere.models()] == ["org/tiny-GGUF:Q4_0"]

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(lookup, "locate", refuse)
    assert lookup.find_path("org/tiny-GGUF:q4_0") == folder / "snapshots" / "new" / "tiny-Q4_0.gguf"
    with pytest.raises(AssertionError, match="the hub was asked"):
        lookup.find_path("org/tiny-GGUF:q4_0", revision="old")
