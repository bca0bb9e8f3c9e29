"""Weights that stay as they are stored: the same products as packed ones, no copy, and a plan that takes them."""

import mmap

import numpy as np
import pytest
import torch

from rung import formats
from rung.core.types import Level
from rung.kernels.cpu.pack.layouts import FORMATS, MAPPED
from rung.kernels.cpu.pack.packing import as_stored, pack, read_rows, unpack
from rung.ops.linear.numba_r16 import ROW
from rung.planning.request import Request
from rung.planning.solve import solve
from tests.ops.conformance import weight
from tests.planning.cards import cpu, gemma_2b


@pytest.mark.parametrize("name", MAPPED)
def test_products_are_those_of_the_packed_weight(name):
    encoded = weight(formats.get(name), 83, 2304)  # no whole group at the end, no whole step of columns
    packed, stored = pack(encoded, 2), as_stored(encoded, 2)
    for rows in (1, 5, 9, 300):
        x = torch.randn(rows, 2304, generator=torch.Generator().manual_seed(rows))
        expected = ROW.apply(packed, x)
        torch.testing.assert_close(ROW.apply(stored, x), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_formats_of_rows_that_hold_all_that_belongs_to_them():
    assert set(MAPPED) <= set(FORMATS)
    assert {formats.get(name).layout for name in MAPPED} == {"rows"}
    assert not {"int8", "nf4", "u4"} & set(MAPPED)


def test_nothing_is_copied_and_the_way_back_is_the_weight_itself(tmp_path):
    encoded = weight(formats.get("q2_k"), 48, 512)
    path = tmp_path / "weights"
    path.write_bytes(encoded.parts["data"].tobytes())
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8).reshape(48, -1)
    original = formats.Encoded(encoded.format, encoded.shape, {"data": mapped})
    stored = as_stored(original)
    assert np.shares_memory(stored.data, mapped)
    assert unpack(stored) is original
    np.testing.assert_array_equal(formats.decode(read_rows(stored, [40, 3])), formats.decode(encoded)[[40, 3]])
    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(ROW.apply(stored, x), ROW.apply(pack(encoded), x))


@pytest.mark.parametrize("name", ["q2_k", "iq2_xxs", "q5_k"])
def test_a_short_budget_reads_the_file_and_a_long_one_packs(name):
    card = gemma_2b(name, "gguf")
    large = solve(card, (cpu(),), Request(context=512))
    small = solve(card, (cpu(round(large.memory / 2**30 - 0.1, 2)),), Request(context=512))
    assert (large.packing, small.packing) == ("r16", "mapped")
    stored = sum(tensor.bytes for tensor in card.tensors if len(tensor.shape) > 1)
    assert small.placements[0].memory.weights < 1.02 * stored < large.placements[0].memory.weights
    assert small.decode_rate < large.decode_rate
    assert solve(card, (cpu(vnni=Level.ABSENT),), Request(context=512)).packing == "stored"
