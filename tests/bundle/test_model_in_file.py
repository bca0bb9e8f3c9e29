"""A GGUF model in a bundle is the same model: card, weights, metadata; and what can be wrong with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rung.core.errors import BadFile
from rung.models.files import gguf
from rung.models.open import open_card
from rung.models.reader import Reader

FILE = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf"


def bundle_of(path: Path, data: bytes, size: int | None = None) -> Path:
    """Write what a bundle begins with, a model, and something behind it."""
    line = gguf.model_line(len(data) if size is None else size, "0" * 64)
    head = f"#!/bin/sh\n{line}\n".encode()
    path.write_bytes(head + bytes(gguf.BUNDLE_ALIGNMENT - len(head)) + data + b"what comes behind a model" * 100)
    return path


def test_card_weights_and_metadata_are_those_of_the_file(tmp_path):
    found, plain = open_card(bundle_of(tmp_path / "x.pyz", FILE.read_bytes())), open_card(FILE)
    moved = tuple(replace(each, offset=each.offset + gguf.BUNDLE_ALIGNMENT) for each in plain.tensors)
    assert replace(found, name=plain.name, path=plain.path, files=plain.files) == replace(plain, tensors=moved)
    with Reader(found) as here, Reader(plain) as there:
        for mine, its in zip(found.tensors, plain.tensors, strict=True):
            np.testing.assert_array_equal(here.read(mine).parts["data"], there.read(its).parts["data"])
    assert gguf.raw_pairs(tmp_path / "x.pyz") == gguf.raw_pairs(FILE)


def test_a_tensor_does_not_reach_behind_the_model(tmp_path):
    """The bytes behind the model are there, and are not its own."""
    with pytest.raises(BadFile, match="not a whole GGUF file"):
        open_card(bundle_of(tmp_path / "x.pyz", FILE.read_bytes(), FILE.stat().st_size - 32))


def test_a_bundle_that_is_cut_off_says_so(tmp_path):
    path = bundle_of(tmp_path / "x.pyz", FILE.read_bytes())
    with path.open("r+b") as file:
        file.truncate(gguf.BUNDLE_ALIGNMENT + FILE.stat().st_size - 1)
    with pytest.raises(BadFile, match="cut off") as error:
        open_card(path)
    assert error.value.code == "file-truncated"


@pytest.mark.parametrize(
    "head",
    [
        b"#!/bin/sh\nexit\n",
        b"# rung bundle: GGUF model at 65536, 100 bytes, sha256 " + b"0" * 64 + b"\n",
        b"#!/bin/sh\n# rung bundle: GGUF model at -1, 10 bytes, sha256 " + b"0" * 64 + b"\n",
        b"#!/bin/sh\n# rung bundle: GGUF model at 99999999999999999999, 1 bytes, sha256 " + b"0" * 64 + b"\n",
    ],
)
def test_a_script_without_the_line_is_no_model(tmp_path, head):
    (tmp_path / "x").write_bytes(head + bytes(2 * gguf.BUNDLE_ALIGNMENT))
    with pytest.raises(BadFile, match="not a GGUF file"):
        open_card(tmp_path / "x")


def test_a_place_where_no_model_is_is_refused(tmp_path):
    with pytest.raises(BadFile, match="no model begins"):
        open_card(bundle_of(tmp_path / "x.pyz", bytes(100)))
