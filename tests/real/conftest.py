"""Folders as transformers saves them, with a vocabulary."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import tiny

sys.modules.setdefault("tiny", tiny)  # as the makers of the fixtures import it

from tests.fixtures import vocabularies  # noqa: E402

Make = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A function (model_type, overrides of its configuration) -> (folder, the model of transformers in f32)."""
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    vocabularies.write(tokenizer, "llama-bpe")

    def checkpoint(model_type: str, **overrides: Any) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(model_type)
        model = tiny.tiny_model(model_type, **overrides)
        tiny.mix_signs(model)
        model.save_pretrained(folder)
        copy_tokenizer(tokenizer, folder)
        return folder, model

    return checkpoint


def copy_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer of one folder for another."""
    for path in source.glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
