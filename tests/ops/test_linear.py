"""Every rung of the ladder over every format it claims and edge shapes, against the decoded weight in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rung import formats
from rung.core.value import FrozenDict
from rung.formats import Encoded
from rung.formats.families import grouped
from rung.ops.linear import LADDER
from rung.ops.linear.tolerance import SCALE, tolerance

from .conformance import CPU, FORMATS, case, weight, wrong

RUNGS = {rung.name: rung for rung in LADDER.rungs}
TAKEN = [
    (rung, format)
    for rung in LADDER.rungs
    for format in FORMATS
    if "*" in rung.formats or format.name.split(":")[0] in rung.formats
]


def same(one: Encoded, other: Encoded) -> bool:
    return (
        one.format == other.format
        and one.shape == other.shape
        and one.parts.keys() == other.parts.keys()
        and all(np.array_equal(one.parts[k], other.parts[k]) for k in one.parts)
        and all(one.parts[k].dtype == other.parts[k].dtype for k in one.parts)
    )


def apply(rung, encoded, x, dtype="f32", threads=2):
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype=dtype, threads=threads)
    got = implementation.apply(state, x)
    assert got.dtype == x.dtype
    assert same(implementation.restore(state), encoded)
    return got


@pytest.mark.parametrize(("rung", "format"), TAKEN, ids=[f"{r.name}-{f.name}" for r, f in TAKEN])
def test_every_rung_computes_what_the_decoded_weight_does(rung, format):
    """Rows of weights that no tile divides, few and many rows of activations, one thread and two."""
    columns = max(512, format.block)
    for rows, threads in ((83, 2), (5, 1)):
        encoded = weight(format, rows, columns)
        dense = torch.from_numpy(formats.decode(encoded))
        for count in (1, 3, 8, 9, 35):
            if not rung.verdict(case("linear", format, (count, rows, columns)), CPU):
                continue
            x = torch.randn(count, columns, generator=torch.Generator().manual_seed(count))
            reason = wrong(rung.name, format.name, "f32", apply(rung, encoded, x, threads=threads), x, dense)
            assert not reason, f"{count} rows of activations, {rows} of weights: {reason}"


@pytest.mark.parametrize("rung", [r for r in LADDER.rungs if "cpu" in r.kinds or "*" in r.kinds], ids=lambda r: r.name)
def test_a_ladder_has_a_rung_for_few_and_for_many(rung):
    if rung.name == "numpy.decode":  # where torch is missing
        lean = replace(CPU, software=FrozenDict({"numba": "0"}))
        assert rung.verdict(case("linear", formats.get("q4_1"), (1, 64, 512)), lean)
        return
    formats_taken = [f for r, f in TAKEN if r is rung]
    assert any(
        rung.verdict(case("linear", f, (count, 64, f.block * 256 if f.block > 1 else 512)), CPU)
        for f in formats_taken
        for count in (1, 64)
    ) or not CPU.capability("isa.kernels")


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k", "q8_0", "int8", "nf4"])
@pytest.mark.parametrize("shape", [(600, 40, 4352), (257, 300, 2304), (1, 16, 256), (2, 33, 256), (8, 17, 4096)])
def test_blocks_of_columns_and_rows_join(name, shape):
    """Shapes that take several passes over columns and activations."""
    count, rows, columns = shape
    encoded = weight(formats.get(name), rows, columns)
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(3))
    rung = RUNGS["numba.row" if count <= 8 else "numba.tile"]
    if not rung.verdict(case("linear", encoded.format, shape), CPU):
        pytest.skip("this processor has no AVX-512 VNNI")
    got = apply(rung, encoded, x)
    assert not wrong(rung.name, name, "f32", got, x, torch.from_numpy(formats.decode(encoded)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 16, 256), (3, 33, 256), (8, 17, 4096), (9, 15, 512), (600, 40, 512)])
def test_packed_rows_take_and_give_16_bits_as_torch_widens_and_narrows_them(shape, dtype):
    """Bit for bit, with NaN, and with sums beyond float16."""
    count, rows, columns = shape
    rung, encoded = RUNGS["numba.row" if count <= 8 else "numba.tile"], weight(formats.get("nf4"), rows, columns)
    if not rung.verdict(case("linear", encoded.format, shape), CPU):
        pytest.skip("this processor has no AVX-512 VNNI")
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(7))
    x[-1] *= 30000
    x[0, 3] = torch.nan if count > 1 else 0
    narrow = x.to(dtype)
    want = apply(rung, encoded, narrow.float()).to(dtype)
    assert torch.allclose(apply(rung, encoded, narrow), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["numba.row", "numba.tile", "numba.stored", "torch.decode", "ref"])
@pytest.mark.parametrize("format", ["q4_0", "bf16"])
def test_activations_that_are_odd(name, format):
    """Zeros, one NaN, huge and tiny values, a view with a stride, another dtype, no rows at all."""
    rung, encoded = RUNGS[name], weight(formats.get(format), 48, 512)
    count = 16 if name == "numba.tile" else 4
    if not rung.verdict(case("linear", encoded.format, (count, 48, 512)), CPU):
        pytest.skip("not for this rung or processor")
    dense = torch.from_numpy(formats.decode(encoded))
    assert not apply(rung, encoded, torch.zeros(count, 512)).any()
    x = torch.randn(count, 512, generator=torch.Generator().manual_seed(5))
    x[1, 7] = torch.nan
    got = apply(rung, encoded, x)
    assert got[1].isnan().all()
    assert got[0].isfinite().all()
    assert got[2:].isfinite().all()
    x[1, 7] = 0
    for factor in (1e-20, 1e20):
        assert not wrong(name, format, "f32", apply(rung, encoded, x * factor) / factor, x, dense)
    wide = torch.randn(count, 700, generator=torch.Generator().manual_seed(6))
    view = wide[:, 100:612]
    assert not wrong(name, format, "f32", apply(rung, encoded, view), view, dense)
    half = x.to(torch.bfloat16)
    got = apply(rung, encoded, half)
    assert (got.float() - half.float() @ dense.T).abs().max() < 0.06 * dense.norm(dim=1).max()
    assert apply(rung, encoded, x[:0]).shape == (0, 48)


def test_the_comparison_finds_what_it_is_there_for():
    """A scale 1 % off, one row 3 % off, one value off, NaN: each is found; the right product passes."""
    generator = torch.Generator().manual_seed(7)
    x, dense = torch.randn(64, 512, generator=generator), torch.randn(83, 512, generator=generator)
    right = x @ dense.T
    check = ("numba.tile", "q4_0", "f32")
    assert not wrong(*check, right, x, dense)
    assert "scale" in wrong(*check, right * 1.005, x, dense)
    row = right.clone()
    row[:, 82] *= 1.015
    assert "row 82" in wrong(*check, row, x, dense)
    value = right.clone()
    value[63, 5] += 2 * tolerance(*check) * float(x[63].norm() * dense[5].norm()) / 512**0.5
    assert "a value" in wrong(*check, value, x, dense)
    value[63, 5] = torch.nan
    assert "NaN" in wrong(*check, value, x, dense)
    assert SCALE < 0.005


def test_every_byte_of_e4m3():
    """Also subnormal ones, zeros of both signs, and what is no number."""
    rung, codes = RUNGS["numba.stored"], np.arange(256, dtype=np.uint8).reshape(16, 16)
    if not rung.verdict(case("linear", formats.get("e4m3:16"), (1, 16, 16)), CPU):
        pytest.skip("not for this processor")
    encoded = grouped.build(formats.get("e4m3:16"), codes, np.full((16, 1), 0.5, np.float32), None)
    values = formats.decode(encoded)
    for column in range(16):
        x = torch.zeros(1, 16)
        x[0, column] = 1
        got, clean = apply(rung, encoded, x)[0].numpy(), np.isfinite(values).all(axis=1)
        assert np.array_equal(got[clean], values[clean, column])
        assert np.isnan(got[~clean]).all()


def test_refusals_say_why():
    few, many = (4, 64, 512), (64, 64, 512)
    q4 = formats.get("q4_0")
    assert "asked for 64" in RUNGS["numba.row"].verdict(case("linear", q4, many), CPU).reason
    assert "asked for 4" in RUNGS["numba.tile"].verdict(case("linear", q4, few), CPU).reason
    assert "rows of 100" in RUNGS["numba.row"].verdict(case("linear", formats.get("int8"), (1, 8, 100)), CPU).reason
    assert "rows of 96" in RUNGS["numba.row"].verdict(case("linear", formats.get("nf4"), (1, 8, 96)), CPU).reason
    assert "rows of 96" in RUNGS["numba.stored"].verdict(case("linear", formats.get("e4m3:24"), (1, 8, 96)), CPU).reason
    ordered = formats.get("e4m3:32:ordered")
    assert "rows of 96" in RUNGS["numba.stored"].verdict(case("linear", ordered, (1, 8, 96)), CPU).reason
    assert "f16" in RUNGS["torch.decode"].verdict(case("linear", q4, few, "f16"), CPU).reason
    assert RUNGS["torch.decode"].verdict(case("linear", q4, few, "bf16"), CPU)


@pytest.mark.parametrize("dtype", ["bf16"])
def test_slabs_in_another_dtype(dtype):
    encoded = weight(formats.get("q8_0"), 300, 256)
    x = torch.randn(40, 256, generator=torch.Generator().manual_seed(8))
    got = apply(RUNGS["torch.decode"], encoded, x, dtype=dtype)
    assert not wrong("torch.decode", "q8_0", dtype, got, x, torch.from_numpy(formats.decode(encoded)))


def test_a_weight_larger_than_a_slab(monkeypatch):
    monkeypatch.setattr("rung.kernels.gpu.stored.SLAB", 64 * 256 * 4)
    for name in ("q6_k", "iq4_nl", "nf4"):
        encoded = weight(formats.get(name), 150, 256)
        x = torch.randn(40, 256, generator=torch.Generator().manual_seed(9))
        got = apply(RUNGS["torch.decode"], encoded, x)
        assert not wrong("torch.decode", name, "f32", got, x, torch.from_numpy(formats.decode(encoded)))
