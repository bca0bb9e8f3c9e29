"""Importance data: read from both kinds of file, and errors that are smaller where they count."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from rung import formats
from rung.conversion.quantize import quantizing, weighed
from rung.conversion.writing import write
from rung.core.errors import BadFile, UsageError
from rung.models import open_card
from rung.models.reader import Reader
from rung.quantization import imatrix
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "model"
    tiny_checkpoint(folder, "llama", "float32", hidden_size=256, intermediate_size=512, head_dim=64)
    return folder


def uneven(columns, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, 2, columns)).astype(np.float32)


def as_gguf(path, data, counts=4.0):
    writer = gguf.GGUFWriter(path, "imatrix")
    for name, values in data.items():
        writer.add_tensor(f"{name}.in_sum2", values[None] * np.float32(counts))
        writer.add_tensor(f"{name}.counts", np.full((1, 1), counts, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_dat(path, data, calls=4):
    records = b"".join(
        struct.pack("<i", len(name))
        + name.encode()
        + struct.pack("<ii", calls, len(values))
        + (values * np.float32(calls)).tobytes()
        for name, values in data.items()
    )
    path.write_bytes(struct.pack("<i", len(data)) + records + struct.pack("<ii", 1, 0))


@pytest.mark.parametrize("writer", [as_gguf, as_dat])
def test_both_kinds_of_file(writer, tmp_path):
    data = {"blk.0.ffn_up.weight": uneven(256), "output.weight": uneven(64, 1)}
    writer(tmp_path / "x", data)
    found = imatrix.read(tmp_path / "x")
    assert found.keys() == data.keys()
    for name, values in data.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


@pytest.mark.parametrize("name", ["q4_k", "q5_k", "q6_k"])
def test_errors_are_smaller_where_they_count(name):
    rng, format = np.random.default_rng(1), formats.get(name)
    weights, counts = rng.normal(size=(64, 512)).astype(np.float32), uneven(512)
    plain = formats.encode(weights, formats.get("f32"))

    def error(importance):
        decoded = formats.decode(formats.convert(plain, format, importance=importance))
        return float((counts * (weights - decoded) ** 2).sum())

    assert error(counts) < 0.93 * error(None)
    even = formats.convert(plain, format, importance=np.full(512, 7, np.float32))
    alike = formats.convert(plain, format)
    assert (even.parts["data"] == alike.parts["data"]).mean() > 0.999


def test_a_file_is_written_with_them(source, tmp_path):
    card = open_card(source)
    name = "blk.0.ffn_down.weight"
    as_gguf(tmp_path / "imatrix", {name: uneven(512)})
    job = quantizing(card, "gguf", "q4_k", {})
    heavy = weighed(job, tmp_path / "imatrix")
    assert heavy.importance.keys() == {"layers.0.down"}
    assert "without importance data" in heavy.notes[-1]
    write(job, tmp_path / "plain.gguf", 1)
    write(heavy, tmp_path / "heavy.gguf", 1)
    plain, other = open_card(tmp_path / "plain.gguf"), open_card(tmp_path / "heavy.gguf")
    with Reader(plain) as one, Reader(other) as two:
        changed = {
            tensor.role
            for tensor in plain.tensors
            if (one.read(tensor).parts["data"] != two.read(other.tensor(tensor.role)).parts["data"]).any()
        }
    assert changed == {"layers.0.down"}


def test_refusals(source, tmp_path):
    card = open_card(source)
    job = quantizing(card, "gguf", "q4_k", {})
    as_dat(tmp_path / "x", {"blk.0.ffn_down.weight": uneven(300)})
    with pytest.raises(BadFile, match="has 512 columns, and they 300"):
        weighed(job, tmp_path / "x")
    as_dat(tmp_path / "x", {"blk.0.other": uneven(300)})
    with pytest.raises(BadFile, match="none of its names is there"):
        weighed(job, tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\x05\0\0\0nonsense")
    with pytest.raises(BadFile, match="holds no importance data"):
        imatrix.read(tmp_path / "x")
    as_dat(tmp_path / "x", {"output.weight": np.full(256, np.nan, np.float32)})
    with pytest.raises(BadFile, match="no square"):
        imatrix.read(tmp_path / "x")
    with pytest.raises(UsageError, match="No format that was chosen"):
        weighed(quantizing(card, "gguf", "q8_0", {}), tmp_path / "x")


@pytest.mark.parametrize("name", ["x.gguf", "x.dat"])
def test_what_is_written_is_read_again_and_by_the_gguf_package(name, tmp_path):
    data = {"blk.0.ffn_up.weight": uneven(256), "output.weight": uneven(64, 1)}
    imatrix.write(tmp_path / name, data, tokens=1024, length=512, source="a text")
    found = imatrix.read(tmp_path / name)
    assert found.keys() == data.keys()
    for tensor, values in data.items():
        np.testing.assert_allclose(found[tensor], values, rtol=1e-6)
    if name.endswith(".gguf"):
        reader = gguf.GGUFReader(tmp_path / name)
        assert bytes(reader.fields["general.type"].parts[-1]) == b"imatrix"
        assert reader.fields["imatrix.chunk_count"].parts[-1][0] == 2
        sums = {each.name: each.data for each in reader.tensors}
        np.testing.assert_allclose(sums["output.weight.in_sum2"].reshape(-1) / 1024, data["output.weight"], rtol=1e-6)
        assert sums["output.weight.counts"].reshape(-1)[0] == 1024
