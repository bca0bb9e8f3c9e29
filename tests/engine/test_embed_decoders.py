"""Embeddings of decoders against transformers' hidden states: every length, batches, chunks, pooling, bad input."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import tiny_encoders
from tiny_decoders import checkpoint

import rung
from rung.core.errors import BadFile, ContextTooLong, UnknownArchitecture, UsageError
from rung.core.value import FrozenDict
from rung.engine.embeddings import embed, pooling_of
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import StateSequence

torch = pytest.importorskip("torch")
WORDS = [f"word{number}" for number in range(125)]


def _tokenizer(around: bool) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {text: number for number, text in enumerate(["<pad>", "<s>", "</s>", *WORDS])}
    result = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    result.add_special_tokens(["<s>", "</s>"])
    if around:
        result.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return result


def write(folder: Path, kind: str = "llama", around: bool = True) -> Any:
    """Save a tiny decoder with a tokenizer that puts tokens around a text, or none; return transformers' model."""
    model = checkpoint(kind)
    model.save_pretrained(folder)
    _tokenizer(around).save(str(folder / "tokenizer.json"))
    return model


def _texts(lengths: Sequence[int]) -> list[str]:
    words = random.Random(4)
    return [" ".join(words.choice(WORDS) for _ in range(length)) for length in lengths]


def _states(model: Any, text: str, around: bool = True) -> np.ndarray:
    """transformers' last_hidden_state of a text, [tokens, hidden]."""
    ids = _tokenizer(around).encode(text).ids
    with torch.inference_mode():
        found: np.ndarray = model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    write(path)
    return path


@pytest.fixture(scope="module")
def packed(folder: Path) -> Any:
    """A model whose weights are packed, so that it computes the same bytes however texts are put together."""
    model = rung.load(folder, format="q8_0", context=256)
    assert model.backend.same_bytes
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi3", "gemma2"])
def test_states_of_folders(kind: str, tmp_path: Path) -> None:
    """The cache is in f16."""
    reference = write(tmp_path, kind)
    texts = _texts([1, 3, 17, 40])
    model = rung.load(tmp_path, context=64)
    for pooling in ("last", "mean"):
        states = [_states(reference, text) for text in texts]
        want = np.stack([each[-1] if pooling == "last" else each.mean(0) for each in states])
        got = model.embed(texts, pooling=pooling, normalize=False)
        assert got.dtype == np.float32
        assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_every_length_of_packed_weights(packed, folder: Path, pooling: str) -> None:
    reference, texts = checkpoint("llama"), _texts(range(1, 60))
    got = packed.embed(texts, pooling=pooling)
    for text, found in zip(texts, got, strict=True):
        states = _states(reference, text)
        want = states[-1] if pooling == "last" else states.mean(0)
        cosine = found @ want / np.linalg.norm(found) / np.linalg.norm(want)
        assert cosine > 0.995, text


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_embedding_does_not_depend_on_what_is_computed_beside_it(packed, pooling: str) -> None:
    texts = _texts([1, 70, 15, 16, 17, 200, 2, 60, 70])
    alone = np.concatenate([packed.embed([text], pooling=pooling) for text in texts])
    assert np.array_equal(packed.embed(texts, pooling=pooling), alone)
    answer = packed.generate(_texts([30])[0], raw=True, max_tokens=40)
    thread = threading.Thread(target=lambda: list(answer))
    thread.start()
    assert np.array_equal(packed.embed(texts[::-1], pooling=pooling)[::-1], alone)
    thread.join()
    ids = [packed.tokenizer.encode_whole(text) for text in texts]
    few = Scheduler(packed.backend, lambda logits, rows: [], chunk=7)
    assert np.array_equal(embed(few, ids, 64, pooling), packed.embed(texts, pooling=pooling, normalize=False))


def test_states_that_are_read_again_are_added_once(packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between the sum and the count of a cache: the step comes again."""
    ids = [packed.tokenizer.encode_whole(_texts([50])[0])]
    want = embed(Scheduler(packed.backend, lambda logits, rows: [], chunk=9), ids, 64, "mean")
    cache, cut = type(packed.backend.begin([], "", False)), [3]
    advance = cache.advance

    def interrupt(self: Any, tokens: Sequence[int]) -> None:
        cut[0] -= 1
        if cut[0] == 0:
            raise KeyboardInterrupt
        advance(self, tokens)

    monkeypatch.setattr(cache, "advance", interrupt)
    scheduler, sequence = Scheduler(packed.backend, lambda logits, rows: [], chunk=9), StateSequence(ids[0], 64, "mean")
    scheduler.add(sequence)
    while not sequence.ended:
        try:
            scheduler.advance(sequence)
        except KeyboardInterrupt:
            continue
    scheduler.cancel(sequence)
    assert cut[0] < 0
    assert np.array_equal(sequence.embedding, want[0])


def test_files_say_the_pooling(tmp_path: Path) -> None:
    reference = write(tmp_path)
    text = _texts([9])[0]
    states = _states(reference, text)
    assert np.allclose(rung.load(tmp_path).embed([text])[0], states[-1], atol=1e-2)
    tiny_encoders.write_pooling(tmp_path, "pooling_mode_mean_tokens", normalize=True)
    want = states.mean(0) / np.linalg.norm(states.mean(0))
    assert np.allclose(rung.load(tmp_path).embed([text])[0], want, atol=1e-2)
    tiny_encoders.write_pooling(tmp_path, "pooling_mode_cls_token", normalize=True)
    with pytest.raises(UsageError, match="no pooling 'cls'"):
        rung.load(tmp_path).embed([text])
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(BadFile, match="no list of modules"):
        rung.load(tmp_path).embed([text])


@pytest.mark.parametrize(("number", "kind"), [(None, ""), (0, ""), (1, "mean"), (3, "last")])
def test_a_gguf_file_says_the_pooling(number: int | None, kind: str) -> None:
    card = rung.load("demo", context=64).card
    said = {} if number is None else {f"{card.metadata['general.architecture']}.pooling_type": number}
    found = pooling_of(replace(card, metadata=FrozenDict({**card.metadata, **said})))
    assert (found.kind, found.normalize) == (kind, True)
    rank = {f"{card.metadata['general.architecture']}.pooling_type": 4}
    with pytest.raises(UnknownArchitecture, match="pooling_type 4"):
        pooling_of(replace(card, metadata=FrozenDict({**card.metadata, **rank})))


def test_the_demo_gives_embeddings_of_length_one() -> None:
    found = rung.load("demo", context=64).embed(["hello", "hello there"])
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert not np.allclose(found[0], found[1])


def test_bad_input(packed, tmp_path: Path) -> None:
    assert packed.embed([]).shape == (0, 64)
    for texts in ("one text", [1], None):
        with pytest.raises(UsageError, match="takes a list of texts"):
            packed.embed(texts)
    with pytest.raises(ContextTooLong, match="257 tokens, the context holds 256"):
        packed.embed(_texts([3, 255]))
    assert packed.embed(_texts([254])).shape == (1, 64)
    long = _texts([300])[0]
    short = " ".join(long.split()[:254])
    assert np.array_equal(packed.embed([long], truncate=True), packed.embed([short]))
    write(tmp_path, around=False)
    bare = rung.load(tmp_path)
    with pytest.raises(UsageError, match="Text 2 is empty"):
        bare.embed(["word1", ""])
    assert packed.embed([""]).shape == (1, 64)  # a token before it and one behind it
