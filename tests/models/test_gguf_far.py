"""Headers of files that are far away: what is left of them says the same, and few bytes are read for it."""

from __future__ import annotations

import random

import pytest
from handmade import ARRAY, F32, I32, STRING, info, llama_pairs, pair
from handmade import gguf as written

from rung.models.files.gguf import read_header
from rung.models.files.gguf_remote import Far, Lost

LONG = 120_000


def words(count, seed=0):
    """Texts as they stand in vocabularies, a few of them empty or long."""
    dice = random.Random(seed)
    found = ["".join(dice.choices("abcdefgh ", k=dice.randint(1, 12))) for _ in range(count)]
    found[count // 2], found[count // 3] = "", " " * 300
    return found


def file(tokens, order=None, alignment=32):
    """A file with a long vocabulary: its bytes, and those of its data."""
    pairs = llama_pairs(
        **{
            "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.scores": (ARRAY, (F32, [0.5] * len(tokens))),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * len(tokens))),
            "tokenizer.ggml.merges": (ARRAY, (STRING, words(LONG, 1))),
            "tokenizer.ggml.eos_token_id": (I32, 2),
        }
    )
    listed = [pairs[key] for key in (order(list(pairs)) if order else pairs)]
    if alignment != 32:
        listed.insert(0, pair("general.alignment", 4, alignment))
    data = bytes(range(256)) * 512
    infos = [info(f"blk.{n}.attn_q.weight", (4, 4), 0, 1024 * n) for n in range(100)]
    return written(listed, infos, data, alignment=alignment), data


class Reads:
    """Reads of a file in memory, counted."""

    def __init__(self, content):
        self.content, self.count, self.bytes = content, 0, 0

    def __call__(self, first, count):
        part = self.content[first : first + count]
        self.count, self.bytes = self.count + 1, self.bytes + len(part)
        return part


def check(tmp_path, content, data):
    """The header of the short file is that of the whole one without its long arrays, and its data are the same."""
    (tmp_path / "whole.gguf").write_bytes(content)
    reads = Reads(content)
    short, moved = Far(reads, len(content)).short()
    (tmp_path / "short.gguf").write_bytes(short + content[len(short) + moved :])
    whole, found = read_header(tmp_path / "whole.gguf"), read_header(tmp_path / "short.gguf")
    assert [(t.name, t.shape, t.format, t.bytes, t.offset + moved) for t in found.tensors] == [
        (t.name, t.shape, t.format, t.bytes, t.offset) for t in whole.tensors
    ]
    assert short + content[len(short) + moved :] == short + data
    kept = {key for key, value in whole.metadata.items() if not hasattr(value, "tolist") or len(value) < 1000}
    assert found.metadata.keys() == kept
    assert all(found.metadata[key] == whole.metadata[key] for key in kept if not hasattr(whole.metadata[key], "tolist"))
    return reads


def test_a_vocabulary_is_stepped_over(tmp_path):
    content, data = file(words(LONG))
    reads = check(tmp_path, content, data)
    assert len(content) > 4 * 2**20
    assert reads.bytes < 2**20
    assert reads.count < 50


@pytest.mark.parametrize("order", [sorted, lambda keys: sorted(keys, reverse=True)])
@pytest.mark.parametrize("alignment", [32, 256])
def test_in_any_order(tmp_path, order, alignment):
    check(tmp_path, *file(words(LONG), order, alignment))


@pytest.mark.parametrize("count", [3, 255, 257, 300, 2000])
def test_short_vocabularies(tmp_path, count):
    content, data = file(words(count) if count > 3 else ["a", "b", "c"])
    (tmp_path / "x.gguf").write_bytes(content)
    short, moved = Far(Reads(content), len(content)).short()
    assert content[len(short) + moved :] == data


@pytest.mark.parametrize("text", ["tokenizer.ggml.model", "general.name"])
def test_tokens_that_look_like_keys(text):
    """The way back is to read the file from its beginning."""
    tokens = words(LONG)
    tokens[-2:] = [text, "abcd"]
    content, data = file(tokens)
    try:
        short, moved = Far(Reads(content), len(content)).short()
    except Lost:
        return
    assert content[len(short) + moved :] == data


@pytest.mark.parametrize(
    "content",
    [
        b"", b"GGUF", b"PNG" + bytes(100), b"GGUF\3\0\0\0" + b"\xff" * 16,
        b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7) + b"\xff" * 64,
        written([pair("a.b", STRING, "x")], [], tensors=5),
    ],
)  # fmt: skip
def test_what_is_no_header(content):
    with pytest.raises(Lost):
        Far(Reads(content), len(content)).short()


def test_endless_texts():
    """A claim of texts without end reads a bounded part of the file."""
    head = written([], [], keys=1)[:24] + pair("tokenizer.ggml.tokens", ARRAY, (STRING, []))[:-8]
    body = b"".join(len(t).to_bytes(8, "little") + t.encode() for t in words(5000))
    reads = Reads(head + (10**9).to_bytes(8, "little") + body * 2000)
    with pytest.raises(Lost):
        Far(reads, len(reads.content)).short()
    assert reads.bytes < 4 * 2**20
