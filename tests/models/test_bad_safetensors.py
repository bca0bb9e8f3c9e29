"""Hostile safetensors files and indices."""

import json
import shutil
import struct
import tracemalloc

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from rung.core.errors import BadFile, UnsafeFile
from rung.models import open_card
from rung.models.files.safetensors import read_header


def file_of(header, data=bytes(64), length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype="F32", shape=(4,), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


CASES = {
    "empty": (b"", "it is an empty file"),
    "short": (b"\x01\x00", "is not a safetensors file"),
    "a GGUF file": (b"GGUF" + bytes(60), "it is a GGUF file"),
    "a zip archive": (b"PK\x03\x04" + bytes(60), "it is a zip archive"),
    "header past the end": (file_of({"t": entry()}, length=10**6), "its header ends at byte 1,000,008, the file at"),
    "header of 2^63 bytes": (file_of({"t": entry()}, length=2**63), "its header ends at byte"),
    "header too long": (file_of(b'{"a":"' + b"x" * 3 * 2**20 + b'"}'), "its header is 3 MB long"),
    "not UTF-8": (file_of(b'{"\xff\xfe": {}}'), "not UTF-8 at byte 2"),
    "not JSON": (file_of(b"{nonsense}"), "not valid JSON"),
    "nested": (file_of(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}"), "nested too deeply"),
    "a name twice": (file_of(b'{"t": {"dtype": "F32"}, "t": {"dtype": "F32"}}'), "'t' twice"),
    "no object": (file_of({"t": 3}), "tensor t is not described by an object"),
    "unknown dtype": (file_of({"t": entry("F33")}), "t has the unknown dtype F33"),
    "dtype a list": (file_of({"t": entry([1])}), "unknown dtype"),
    "no dtype": (file_of({"t": {"shape": [1], "data_offsets": [0, 4]}}), "unknown dtype None"),
    "negative shape": (file_of({"t": entry(shape=(-4,))}), "has the shape"),
    "shape of floats": (file_of({"t": entry(shape=(4.0,))}), "has the shape"),
    "shape of truth": (file_of({"t": entry("U8", shape=(True,), offsets=(0, 1))}), "has the shape"),
    "2^60 elements": (file_of({"t": entry(shape=(2**60,))}), "has the shape"),
    "a product beyond everything": (file_of({"t": entry(shape=(2**59,) * 9)}), "needs another size"),
    "wrong size": (file_of({"t": entry(shape=(5,))}), r"needs another size"),
    "room for more than the shape": (file_of({"t": entry(shape=(3,))}), "needs another size"),
    "offsets turned round": (file_of({"t": entry(offsets=(16, 0))}), "needs another size"),
    "one offset": (file_of({"t": entry(offsets=(16,))}), "has the offsets"),
    "past the end": (
        file_of({"t": entry(shape=(1024,), offsets=(0, 4096))}),
        r"tensor t ends at byte 4,1\d\d, the file at 1\d\d",
    ),
    "overlapping": (file_of({"s": entry(), "t": entry(offsets=(8, 24))}), "s and t overlap"),
}


@pytest.mark.parametrize("case", CASES)
def test_broken_headers(tmp_path, case):
    data, words = CASES[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(BadFile, match=words) as error:
        read_header(path)
    assert error.value.ways_out
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(data) + 64 * 2**20


def test_a_pickle_by_another_name(tmp_path):
    path = tmp_path / "model.safetensors"
    torch.save({"t": torch.zeros(4)}, path)
    with pytest.raises(UnsafeFile, match="is a pickle"):
        read_header(path)


def test_header_equals_what_the_reference_reads(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).half(),
        "c": torch.randn(2, 2, 2).bfloat16(),
        "d": torch.arange(6),
        "e": torch.zeros(0, 4),
        "f": torch.tensor(1.5),
        "g": torch.tensor([True]),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    found = {tensor.name: tensor for tensor in read_header(path)}
    raw = path.read_bytes()
    names = {"a": "f32", "b": "f16", "c": "bf16", "d": "I64", "e": "f32", "f": "f32", "g": "BOOL"}
    with safetensors.safe_open(path, "pt") as file:
        assert set(found) == set(file.keys())
        for name, tensor in found.items():
            assert tensor.shape == tuple(tensors[name].shape)
            assert tensor.format == names[name]
            assert tensor.known == (names[name] in ("f32", "f16", "bf16"))
            stored = raw[tensor.offset : tensor.end]
            assert stored == tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def shards(checkpoints, tmp_path):
    folder = tmp_path / "model"
    checkpoints("llama")[1].save_pretrained(folder, max_shard_size="200KB")
    assert open_card(folder).files
    return folder


def rewrite(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index.pop("weight_map"), "has no weight_map"),
        (lambda index: index["weight_map"].update(t=3), "has no weight_map"),
        (lambda index: index["weight_map"].update(t="../../etc/x.safetensors"), "has no weight_map"),
        (lambda index: index["weight_map"].update(t="pytorch_model.bin"), "has no weight_map"),
        (lambda index: index["weight_map"].update({"new": "model-00001-of-00003.safetensors"}), "should hold"),
        (lambda index: index["weight_map"].update({f"t{n}": f"{n}.safetensors" for n in range(2000)}), "names 2,00"),
    ],
)
def test_indices_that_lie(shards, change, words):
    names = sorted(path.name for path in shards.glob("*.safetensors"))
    assert names[0].startswith("model-00001-of-0000")
    if len(names) != 3:
        shutil.copy(shards / names[0], shards / "model-00001-of-00003.safetensors")
    rewrite(shards, change)
    with pytest.raises(BadFile, match=words):
        open_card(shards)


def test_a_tensor_in_two_shards(shards):
    first, second, *_ = sorted(shards.glob("*.safetensors"))
    shutil.copy(first, second)
    with pytest.raises(BadFile, match="is in two shards"):
        open_card(shards)


def test_a_shard_that_stopped(shards):
    last = sorted(shards.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-8])
    with pytest.raises(BadFile, match=r"is not a whole safetensors file: tensor .* ends at byte"):
        open_card(shards)
