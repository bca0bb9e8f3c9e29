"""Hostile GGUF files: a clear error that names what is wrong, and nothing is allocated for what is not there."""

import struct
import tracemalloc

import handmade
import pytest
from handmade import ARRAY, BOOL, F32, STRING, U8, U32, U64, gguf, info, llama, pair, text

from rung.core.errors import BadFile
from rung.models import open_card
from rung.models.files.gguf import read_header

ONE = [pair("general.architecture", STRING, "llama")]
BLOCK = bytes(64)


def read(tmp_path, data):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        return read_header(path)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 * len(data) + 64 * 2**20


HEAD = struct.Struct("<4sIQQ")

CASES = {
    "version 1": (HEAD.pack(b"GGUF", 1, 0, 0), "version 1"),
    "version 9": (HEAD.pack(b"GGUF", 9, 0, 0), "of version 9"),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
    "the magic alone": (b"GGUF", "the version ends at byte 8, the file at 4"),
    "half a head": (HEAD.pack(b"GGUF", 3, 0, 0)[:14], "not a whole GGUF file"),
    "2^60 tensors": (gguf(ONE, [], tensors=2**60), "claims 1,152,921,504,606,846,976 tensors"),
    "2^60 keys": (gguf(ONE, [], keys=2**60), "claims 1,152,921,504,606,846,976 keys"),
    "2^64 - 1 keys": (gguf(ONE, [], keys=2**64 - 1), "claims"),
    "more keys than are there": (gguf(ONE, [], keys=2, tensors=0), "a key without a name"),
    "too many keys": (gguf([pair("k", U8, 0)] * 20000, []), "reads up to 16,384"),
    "a key twice": (gguf(ONE * 2, []), "the key general.architecture is there twice"),
    "a key of 4 GB": (gguf([struct.pack("<Q", 2**32) + b"abc", *ONE, bytes(64)], []), "a key is 4.0 GB long"),
    "a text of 4 GB": (
        gguf([text("k") + struct.pack("<IQ", STRING, 2**32) + b"abc", bytes(64)], []),
        "the text of k is 4.0 GB long",
    ),
    "a text past the end": (
        gguf([text("k") + struct.pack("<IQ", STRING, 1000) + b"abc", bytes(64)], []),
        "the text of k ends at byte",
    ),
    "a key that is no UTF-8": (gguf([pair(b"\xff\xfe", U32, 1)], []), "a key is not UTF-8 at byte 32"),
    "a text that is no UTF-8": (gguf([pair("k", STRING, b"ab\xff")], []), "the text of k is not UTF-8"),
    "an unknown type of value": (
        gguf([text("k") + struct.pack("<I", 13) + bytes(32)], []),
        "k has the unknown type 13",
    ),
    "an unknown type of element": (
        gguf([text("k") + struct.pack("<IIQ", ARRAY, 77, 1) + bytes(32)], []),
        "unknown type 77",
    ),
    "an array of arrays": (gguf([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(32)], []), "unknown type 9"),
    "2^60 numbers": (gguf([text("k") + struct.pack("<IIQ", ARRAY, U64, 2**60)], []), "the array k ends at byte"),
    "2^62 numbers": (gguf([text("k") + struct.pack("<IIQ", ARRAY, F32, 2**62)], []), "the array k ends at byte"),
    "2^60 strings": (gguf([text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**60)], []), "the array k ends at byte"),
    "a string of 4 GB in an array": (
        gguf([text("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + struct.pack("<Q", 2**32) + bytes(64)], []),
        "the array k goes on past its end",
    ),
    "a string of 2^64 - 1 bytes in an array": (
        gguf([text("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + struct.pack("<Q", 2**64 - 1) + bytes(64)], []),
        "the array k goes on past its end",
    ),
    "alignment 0": (gguf([pair("general.alignment", U32, 0)], []), "general.alignment is 0"),
    "alignment 24": (gguf([pair("general.alignment", U32, 24)], []), "not a power of two"),
    "alignment true": (gguf([pair("general.alignment", BOOL, True)], []), "general.alignment is True"),
    "alignment 2^31": (gguf([pair("general.alignment", U32, 2**31)], []), "not a power of two up to"),
    "alignment abc": (gguf([pair("general.alignment", STRING, "abc")], []), "general.alignment is abc"),
    "no dimensions": (gguf(ONE, [info("t", (), 0, 0) + bytes(32)], BLOCK), "t has 0 dimensions"),
    "five dimensions": (gguf(ONE, [info("t", (1,) * 5, 0, 0)], BLOCK), "t has 5 dimensions"),
    "2^32 dimensions": (
        gguf(ONE, [text("t") + struct.pack("<I", 2**32 - 1) + bytes(64)], BLOCK),
        "t has 4,?294,?967,?295 dimensions",
    ),
    "a dimension of zero": (gguf(ONE, [info("t", (4, 0), 0, 0)], BLOCK), r"t has the shape \[4, 0\]"),
    "2^62 elements": (gguf(ONE, [info("t", (2**31, 2**31), 0, 0)], BLOCK), "t has the shape"),
    "2^252 elements": (gguf(ONE, [info("t", (2**63,) * 4, 0, 0)], BLOCK), "t has the shape"),
    "a tensor past the end": (
        gguf(ONE, [info("blk.7.ffn_up.weight", (64, 64), 0, 0)], BLOCK),
        r"tensor blk\.7\.ffn_up\.weight ends at byte 16,\d\d\d, the file at 1\d\d",
    ),
    "an offset past the end": (gguf(ONE, [info("t", (4,), 0, 2**40)], BLOCK), "t ends at byte 1,099,511,6"),
    "an offset of 2^64 - 32": (gguf(ONE, [info("t", (4,), 0, 2**64 - 32)], BLOCK), "t ends at byte 18,446,744"),
    "an offset between places": (gguf(ONE, [info("t", (4,), 0, 4)], BLOCK), "the alignment 32 forbids"),
    "overlapping": (gguf(ONE, [info("s", (16,), 0, 0), info("t", (4,), 0, 32)], BLOCK), "s and t overlap"),
    "the same place": (gguf(ONE, [info("s", (4,), 0, 0), info("t", (4,), 0, 0)], BLOCK), "s and t overlap"),
    "a name twice": (gguf(ONE, [info("t", (4,), 0, 0), info("t", (4,), 0, 32)], BLOCK), "the tensor t is there twice"),
    "a removed type": (gguf(ONE, [info("t", (32,), 4, 0)], BLOCK), "type number 4, which rung does not know"),
    "type 2^32 - 1": (gguf(ONE, [info("t", (32,), 2**32 - 1, 0)], BLOCK), "type number 4294967295"),
    "half a block": (gguf(ONE, [info("t", (4, 40), 2, 0)], BLOCK * 8), "q4_0 has rows of 40, and its blocks hold 32"),
    "a long name": (gguf(ONE, [info("t" * 200, (4,), 0, 0)], BLOCK), "a tensor's name is 200 bytes long"),
}


@pytest.mark.parametrize("case", CASES)
def test_broken_headers(tmp_path, case):
    data, words = CASES[case]
    with pytest.raises(BadFile, match=words) as error:
        read(tmp_path, data)
    assert error.value.ways_out


def test_the_download_probably_stopped(tmp_path):
    whole = llama(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "x.gguf").write_bytes(whole[:-40])
    with pytest.raises(BadFile) as error:
        open_card(tmp_path / "x.gguf")
    lines = str(error.value).splitlines()
    assert lines[0] == (
        f"x.gguf is not a whole GGUF file: tensor blk.0.ffn_down.weight ends at byte {len(whole):,}, "
        f"the file at {len(whole) - 40:,}."
    )
    assert "The download probably stopped." in lines[1]
    assert "hf download ORG/REPO x.gguf" in str(error.value)


def test_every_cut_is_noticed(tmp_path):
    whole = llama(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "x.gguf"
    for length in [*range(64), *range(64, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BadFile):
            open_card(path)
    path.write_bytes(whole + b"more at the end harms nobody")
    assert open_card(path).tensors == open_card(tmp_path / "whole.gguf").tensors


def test_texts_are_bounded_together(tmp_path):
    long = "x" * (6 * 2**20)
    with pytest.raises(BadFile, match="longer than 16 MB together"):
        read(tmp_path, gguf([pair(f"k{n}", STRING, long) for n in range(3)], []))


def test_many_strings_cost_no_more_than_they_take(tmp_path, monkeypatch):
    count = 200_000
    data = gguf([text("k") + struct.pack("<IIQ", ARRAY, STRING, count) + bytes(8 * count)], [])
    assert len(read(tmp_path, data).metadata["k"]) == count
    monkeypatch.setattr("rung.models.files.gguf.MOST_STRINGS", count - 1)
    with pytest.raises(BadFile, match="claims 200,000 strings; rung reads up to 199,999"):
        read(tmp_path, data)


def test_strings_are_counted_together(tmp_path, monkeypatch):
    arrays = [text(key) + struct.pack("<IIQ", ARRAY, STRING, 60) + bytes(8 * 60) for key in ("k", "l")]
    monkeypatch.setattr("rung.models.files.gguf.MOST_STRINGS", 119)
    with pytest.raises(BadFile, match="claims 120 strings; rung reads up to 119"):
        read(tmp_path, gguf(arrays, []))


FOREIGN = {
    "an empty file": b"",
    "a zip archive": b"PK\x03\x04" + bytes(60),
    "a PNG image": b"\x89PNG\r\n\x1a\n" + bytes(60),
    "a web page": b"<!DOCTYPE html><html>" + b" " * 60,
    "a safetensors file": struct.pack("<Q", 20) + b'{"t": {}}' + bytes(60),
    "a PDF document": b"%PDF-1.7" + bytes(60),
    "a gzip archive": b"\x1f\x8b\x08" + bytes(60),
    "a program": b"\x7fELF\x02" + bytes(60),
    "a git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5",
    "a JSON file": b'{"model_type": "llama"}' + b" " * 60,
    "a file of zeros": bytes(4096),
    "a GGJT file": b"tjgg"[::-1] + bytes(60),
    "its first bytes are 01 02 03": b"\x01\x02\x03" * 30,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_files_are_called_by_their_name(tmp_path, what):
    path = tmp_path / "model.gguf"
    path.write_bytes(FOREIGN[what])
    with pytest.raises(BadFile, match="is not a GGUF file") as error:
        open_card(path)
    assert what in str(error.value)


def test_metadata_that_rung_does_not_need_harms_nobody(tmp_path):
    keys = {"x.unknown": (ARRAY, (STRING, ["a"] * 1000)), "y": (handmade.F64, float("nan"))}
    assert open_card(llama(tmp_path / "x.gguf", keys)).metadata["x.unknown"][999] == "a"


def test_a_rotary_table_that_no_head_has(tmp_path):
    """A billion frequencies would be made from one number."""
    wide = {f"llama.{key}": (U32, 2**30) for key in ("attention.key_length", "attention.value_length")}
    with pytest.raises(BadFile, match="dimensions rotate"):
        open_card(llama(tmp_path / "x.gguf", wide | {"llama.rope.dimension_count": (U32, 2**30)}))
