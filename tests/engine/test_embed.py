"""Embeddings of encoders against transformers: every length, batches, pooling, GGUF files, formats, and bad input."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import tiny_encoders
from tests.tiny_encoders import WORDS

import rung
from rung.core.errors import BadFile, ContextTooLong, UnknownArchitecture, UsageError

torch = pytest.importorskip("torch")


def _texts(lengths: Sequence[int]) -> list[str]:
    """Texts that have so many tokens without those around them."""
    words = random.Random(3)
    return [" ".join(words.choice(WORDS) for _ in range(length)) for length in lengths]


def _states(folder: Path, text: str) -> np.ndarray:
    """transformers' hidden states of one text, [tokens, hidden]."""
    from transformers import AutoTokenizer, BertModel

    model = BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        states = model(**AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")).last_hidden_state
    return states[0].numpy()


def _mean(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """transformers' states of texts of any length, each alone, pooled by mean."""
    from transformers import AutoTokenizer, BertModel

    model, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        found = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for text in texts]
    return np.stack(found)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoders.write(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return rung.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_size": 96, "num_attention_heads": 2, "hidden_act": "gelu_new"},
        {"hidden_size": 40, "num_attention_heads": 5, "layer_norm_eps": 1e-3},
    ],
    ids=["heads of 16", "heads of 48, tanh", "heads of 8, no kernel"],
)
def test_every_length_gives_what_transformers_gives(changes: dict[str, object], tmp_path: Path) -> None:
    path = tiny_encoders.write(tmp_path, **changes)
    texts = _texts(range(71))
    want = _mean(path, texts)
    got = rung.load(path).embed(texts, pooling="mean", normalize=False)
    assert got.shape == want.shape
    assert got.dtype == np.float32
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


def test_a_text_is_the_same_alone_and_in_a_batch(model) -> None:
    texts = _texts([5, 70, 1, 33, 94, 2, 60, 60, 94, 94])
    whole = model.embed(texts)
    alone = np.concatenate([model.embed([text]) for text in texts])
    assert np.abs(whole - alone).max() < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling(model, folder: Path, pooling: str) -> None:
    text = _texts([7])[0]
    states = _states(folder, text)
    want = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    assert np.allclose(model.embed([text], pooling=pooling)[0], want, atol=1e-5)
    short = model.embed([text], pooling=pooling, normalize=True)[0]
    assert np.allclose(short, want / np.linalg.norm(want), atol=1e-5)


@pytest.mark.parametrize(("flag", "row"), [("pooling_mode_cls_token", 0), ("pooling_mode_lasttoken", -1)])
def test_files_say_the_pooling(tmp_path: Path, flag: str, row: int) -> None:
    path = tiny_encoders.write(tmp_path)
    tiny_encoders.write_pooling(path, flag, normalize=True)
    text = _texts([4])[0]
    want = _states(path, text)[row]
    model = rung.load(path)
    assert np.allclose(model.embed([text])[0], want / np.linalg.norm(want), atol=1e-5)
    assert np.allclose(model.embed([text], normalize=False)[0], want, atol=1e-5)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_gguf_files_give_what_the_folder_gives(model, folder: Path, tmp_path: Path, kind: str) -> None:
    path = tiny_encoders.write_gguf(folder, tmp_path / "tiny.gguf", kind)
    texts = [*_texts(range(1, 40)), "Word3ing, word4ED. wörd5", "[SEP] unheard"]
    got = rung.load(path).embed(texts)
    want = model.embed(texts, normalize=True)
    assert np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    assert _cosines(got, want).min() > {"F32": 0.999999, "F16": 0.9999, "Q8_0": 0.995}[kind]


def test_a_gguf_file_says_the_pooling(folder: Path, tmp_path: Path) -> None:
    path = tiny_encoders.write_gguf(folder, tmp_path / "tiny.gguf", pooling=2)
    text = _texts([9])[0]
    want = _states(folder, text)[0]
    assert np.allclose(rung.load(path).embed([text])[0], want / np.linalg.norm(want), atol=1e-5)


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "bf16"])
def test_formats(folder: Path, model, format: str) -> None:
    texts = _texts(range(1, 60, 7))
    loaded = rung.load(folder, format=format)
    assert loaded.plan.format == format
    bound = {"q8_0": 0.995, "q4_0": 0.8, "bf16": 0.999}[format]
    cosines = _cosines(loaded.embed(texts), model.embed(texts))
    assert bound < cosines.min() < 0.9999999


def test_texts_that_are_too_long(model, tmp_path: Path, folder: Path) -> None:
    fits, beyond = _texts([94, 95])
    assert model.embed([fits]).shape == (1, 64)
    with pytest.raises(ContextTooLong, match="97 tokens, the context holds 96") as error:
        model.embed(["word1", beyond])
    assert "truncate=True" in error.value.ways_out[0]
    short = " ".join(beyond.split()[:94])
    assert np.array_equal(model.embed([beyond], truncate=True), model.embed([short]))
    ids = model.embedding_ids([fits, short])
    assert np.array_equal(model.embed([ids[0], short]), model.embed([fits, ids[1]]))
    for wrong in ([[-1]], [[10**6]], [[]], [b"a"], [[1.5]], [1]):
        with pytest.raises(UsageError):
            model.embed(wrong)


def test_texts_are_cut_where_sentence_transformers_cuts_them(tmp_path: Path) -> None:
    path = tiny_encoders.write(tmp_path)
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    model = rung.load(path)
    text = _texts([40])[0]
    short = " ".join(text.split()[:10])
    assert np.array_equal(model.embed([text], truncate=True), model.embed([short]))
    assert not np.allclose(model.embed([text]), model.embed([short]), atol=1e-3)


def test_no_texts_and_empty_ones(model, folder: Path) -> None:
    assert model.embed([]).shape == (0, 64)
    assert np.allclose(model.embed(["", "word1"])[0], _mean(folder, [""])[0], atol=1e-5)
    assert np.isfinite(model.embed(["\ud800", "\0"])).all()


@pytest.mark.parametrize("texts", ["one text", [1], None, {"a": "b"}])
def test_what_is_no_list_of_texts_is_refused(model, texts) -> None:
    with pytest.raises(UsageError, match="takes a list of texts"):
        model.embed(texts)


def test_a_pooling_that_there_is_not_is_refused(model) -> None:
    with pytest.raises(UsageError, match="no pooling 'max'"):
        model.embed(["a"], pooling="max")


@pytest.mark.parametrize("call", ["generate", "chat", "logits"])
def test_an_encoder_writes_no_text(model, call: str) -> None:
    with pytest.raises(UsageError, match="is an encoder: it makes embeddings"):
        getattr(model, call)("Hi")


def test_adapters_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="is an encoder"):
        rung.load(folder, adapters=["nowhere"])


def test_a_missing_vocabulary(folder: Path, tmp_path: Path) -> None:
    bare = tiny_encoders.write(tmp_path / "bare", tokenizer=False)
    with pytest.raises(BadFile, match="has no tokenizer"):
        rung.load(bare)
    path = tiny_encoders.write_gguf(folder, tmp_path / "tiny.gguf", vocabulary=False)
    with pytest.raises(BadFile, match="has no vocabulary"):
        rung.load(path)


def test_vocab_txt_alone(model, folder: Path, tmp_path: Path) -> None:
    path = tiny_encoders.write(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    texts = ["Word3ing, word4ED. wörd5", "word1ab"]
    assert np.array_equal(rung.load(path).embed(texts), model.embed(texts))


def test_what_cannot_be_an_encoder(tmp_path: Path) -> None:
    path = tiny_encoders.write(tmp_path)
    config = json.loads((path / "config.json").read_text())

    def changed(**changes: object) -> None:
        (path / "config.json").write_text(json.dumps({**config, **changes}))

    changed(hidden_size=80)
    with pytest.raises(BadFile, match="contradicts its tensors"):
        rung.plan(path)
    changed(num_hidden_layers=3)
    with pytest.raises(BadFile, match="lacks 16 tensors"):
        rung.plan(path)
    changed(num_attention_heads=7)
    with pytest.raises(BadFile, match="7 heads do not divide"):
        rung.plan(path)
    changed(hidden_act="relu")
    with pytest.raises(UnknownArchitecture, match="relu"):
        rung.plan(path)
    changed()
    tiny_encoders.write_pooling(path, "pooling_mode_max_tokens", normalize=False)
    with pytest.raises(UnknownArchitecture, match="pools by pooling_mode_max_tokens"):
        rung.plan(path)


def test_the_plan_counts_the_weights(folder: Path) -> None:
    stored, small = rung.plan(folder), rung.plan(folder, format="q8_0")
    assert stored.format == "stored"
    assert stored.placements[0].memory.kv_cache == 0
    assert 0 < small.placements[0].memory.weights < stored.placements[0].memory.weights
