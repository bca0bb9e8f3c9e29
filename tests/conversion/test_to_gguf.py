"""Folders as GGUF files, held against those that llama.cpp's own converter made of the same folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from rung.conversion.gguf_keys import FILE_TYPES
from rung.conversion.quantize import quantizing
from rung.conversion.tokenizers import vocabulary
from rung.conversion.writing import write
from rung.core.errors import BadFile
from rung.models import open_card
from tests import tiny

FIXTURES = Path(__file__).parents[1] / "fixtures"
sys.path += [str(FIXTURES), str(FIXTURES.parent)]

import vocabularies  # noqa: E402

INDEX = {entry["name"]: entry for entry in json.loads((FIXTURES / "gguf" / "index.json").read_text())}
PLAIN = [name for name, entry in INDEX.items() if entry["format"] == "F32" and len(entry["files"]) == 1]


def fields(path: Path) -> dict[str, tuple[str, Any]]:
    """Each key with the names of its types and its value."""
    return {
        key: ("/".join(kind.name for kind in field.types), field.contents())
        for key, field in gguf.GGUFReader(path).fields.items()
        if not key.startswith("GGUF.")
    }


def folder_of(entry: dict[str, Any], folder: Path) -> Any:
    """The folder that a fixture was made of, and its model."""
    shape = dict(entry["model"])
    model = tiny.tiny_model(shape.pop("model_type"), **shape)
    tiny.mix_signs(model)
    model.save_pretrained(folder)
    metadata = fields(FIXTURES / "gguf" / entry["files"][0])
    kind = metadata["tokenizer.ggml.model"][1]
    vocabularies.write(folder, "spm" if kind == "llama" else metadata["tokenizer.ggml.pre"][1])
    return model


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": []}}'),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {}}, "added_tokens": [{}]}'),
        ("tokenizer.model", "\x0a\x00"),
    ],
)
def test_tokenizers_that_say_anything(file, text, tmp_path):
    tiny.tiny_checkpoint(tmp_path, "llama")
    vocabularies.write(tmp_path, "llama-bpe")
    (tmp_path / file).write_text(text)
    with pytest.raises(BadFile, match=r"is not built as|holds no|is of the kind|is no vocabulary"):
        vocabulary.tokenizer_keys(open_card(tmp_path))


@pytest.mark.parametrize("name", PLAIN)
def test_a_file_is_that_of_llama_cpps_converter(name, tmp_path):
    entry = INDEX[name]
    folder_of(entry, tmp_path / "tiny")
    write(quantizing(open_card(tmp_path / "tiny"), "gguf", "f32", {}), tmp_path / "x.gguf", 1)
    ours, theirs = tmp_path / "x.gguf", FIXTURES / "gguf" / entry["files"][0]
    a, b = fields(ours), fields(theirs)
    b.pop("tokenizer.ggml.eot_token_id", None)  # of CodeGemma's vocabulary, which the converter gives to every Gemma
    for metadata in (a, b):
        metadata.pop("tokenizer.ggml.pre")  # for these vocabularies the converter was told from outside
        if name == "qwen2-f32":  # transformers' Qwen2 tokenizer adds a token of its own to the 300
            for key in ("tokens", "token_type"):
                del metadata[f"tokenizer.ggml.{key}"][1][300]
    assert {key: a.get(key) for key in b} == b
    assert a.keys() == b.keys()
    mine = {tensor.name: tensor for tensor in gguf.GGUFReader(ours).tensors}
    for tensor in gguf.GGUFReader(theirs).tensors:
        other = mine.pop(tensor.name)
        assert (list(other.shape), other.tensor_type) == (list(tensor.shape), tensor.tensor_type)
        np.testing.assert_allclose(
            other.data, tensor.data, rtol=2e-6 if "rope" in tensor.name else 0, err_msg=tensor.name
        )
    assert not mine


@pytest.mark.parametrize("name", [path.stem for path in sorted((FIXTURES / "tokenizers").glob("*.gguf"))])
def test_a_tokenizer_is_that_of_llama_cpps_converter(name):
    folder = FIXTURES / "tokenizers" / name
    theirs = fields(folder.with_suffix(".gguf"))
    card = type("Card", (), {})()
    card.tokenizer, card.path, card.chat_template = "x", str(folder), None
    card.metadata = json.loads((folder / "config.json").read_text())
    card.decoder = type("Decoder", (), {})()
    card.decoder.vocabulary = card.metadata["vocab_size"]
    card.decoder.model_type = card.metadata["model_type"]
    ours = vocabulary.tokenizer_keys(card)
    theirs.pop("tokenizer.ggml.add_sep_token", None)  # of pairs of texts
    expected = {key: value for key, (_, value) in theirs.items() if key.startswith("tokenizer.")}
    if "tokenizer.ggml.scores" in expected:
        np.testing.assert_array_equal(
            np.float32(expected.pop("tokenizer.ggml.scores")), np.float32(ours.pop("tokenizer.ggml.scores"))
        )
    assert {key: ours.get(key) for key in expected} == expected
    assert ours.keys() - {"tokenizer.ggml.add_eos_token"} == expected.keys() - {"tokenizer.ggml.add_eos_token"}


def test_file_types_are_llama_cpps():
    own = {kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").lower(): kind.value for kind in gguf.LlamaFileType}
    for name, number in FILE_TYPES.items():
        assert own.get(name, own.get(f"{name}_m")) == number, name
