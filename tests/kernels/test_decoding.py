"""Weights decoded by the kernels are those that numpy decodes, to the bit."""

import numpy as np
import pytest
import torch

from rung import formats
from rung.formats import Encoded
from rung.formats.families import grouped
from rung.kernels.cpu.pack import decoding


def encoded(format: str, rows: int, columns: int) -> Encoded:
    values = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    return formats.encode(values, formats.get(format))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("format", ["nf4", "fp4", "nf4:64:nested", "fp4:512:nested", "nf4:4096"])
def test_whole_blocks(format: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = encoded(format, 72, 1024)
    slices = [None, slice(0, 72), slice(4, 60), slice(64, 68)]
    expected = [formats.decode(weight, rows) for rows in slices]
    monkeypatch.setattr("rung.kernels.cpu.pack.decoding.formats.decode", None)
    for rows, values in zip(slices, expected, strict=True):
        assert np.array_equal(decoding.decode(weight, rows, threads), values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", ["nf4", "fp4:512:nested", "nf4:4096"])
def test_sixteen_bits_are_rounded_as_torch_rounds(format: str, dtype: torch.dtype) -> None:
    """Also what overflows, subnormal numbers, ties, infinities and what is no number."""
    weight = encoded(format, 72, 1024)
    absmax = weight.parts["absmax"]
    if absmax.dtype == np.float32:
        absmax.reshape(-1)[:9] = [6e4, 7e4, 1e-6, 1e-39, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, np.nan, 0][: absmax.size]
        absmax.reshape(-1).view(np.uint32)[9:10] = 0x7FFFFFFF  # no number either; rounded up it would be minus zero
    name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(formats.decode(weight, slice(0, 68))).to(dtype)
    bits = decoding.narrow(weight, name, slice(0, 68), 2)
    decoded = torch.from_numpy(bits).view(dtype)
    assert torch.equal(decoded.isnan(), expected.isnan())
    assert torch.equal(decoded.nan_to_num().view(torch.int16), expected.nan_to_num().view(torch.int16))
    assert decoding.narrow(encoded("nf4", 4, 96), name, slice(1, 3)) is None  # blocks that lie in two rows


@pytest.mark.parametrize("ordered", ["", ":ordered"])
@pytest.mark.parametrize("format", ["u2:16:bf16", "u4:64", "u8:32:f32", "e4m3:128", "e4m3:256:bf16"])
def test_what_other_quantizers_write(format: str, ordered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = grouped.sample(formats.get(format + ordered), (40, 512), np.random.default_rng(1))
    slices = [None, slice(3, 37)]
    expected = [formats.decode(weight, rows) for rows in slices]
    monkeypatch.setattr("rung.kernels.cpu.pack.decoding.formats.decode", None)
    for rows, values in zip(slices, expected, strict=True):
        assert np.array_equal(decoding.decode(weight, rows, 2), values)


def test_zero_points_between_codes_and_every_byte_of_e4m3() -> None:
    format, codes = formats.get("u4:32:f16"), np.arange(256, dtype=np.uint8).reshape(2, 128)
    scale = np.full((2, 4), 0.3, np.float16)
    between = grouped.build(format, codes & 15, scale, np.full((2, 4), 7.3, np.float16))
    assert np.array_equal(decoding.decode(between), formats.decode(between))
    far = grouped.build(format, codes & 15, scale, np.full((2, 4), 5000, np.float16))
    assert np.array_equal(decoding.decode(far), formats.decode(far))
    every = grouped.build(formats.get("e4m3:128"), codes, np.full((2, 1), 0.3, np.float32), None)
    assert np.array_equal(decoding.decode(every), formats.decode(every), equal_nan=True)


@pytest.mark.parametrize(
    ("format", "shape", "rows"),
    [
        ("nf4", (3, 33), None),
        ("nf4", (4, 96), slice(1, 3)),
        ("nf4", (4, 96), slice(2, 2)),
        ("nf4", (4, 64), slice(3, 1)),
        ("q4_0", (4, 64), slice(1, 3)),
        ("nf4", (0, 64), None),
    ],
)
def test_what_the_kernel_does_not_take(format: str, shape: tuple[int, int], rows: slice | None) -> None:
    weight = encoded(format, *shape)
    decoded, expected = decoding.decode(weight, rows), formats.decode(weight, rows)
    assert decoded.shape == expected.shape
    assert np.array_equal(decoded, expected)


def test_parts_that_are_too_short_are_not_read_beyond_their_end() -> None:
    weight = encoded("nf4", 4, 64)

    def short(part: str) -> Encoded:
        return Encoded(weight.format, weight.shape, {**weight.parts, part: weight.parts[part][:3]})

    assert not decoding.decode(short("data"))[1:].any()
    with pytest.raises(ValueError, match="broadcast"):
        decoding.decode(short("absmax"))


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = encoded("nf4", 4, 64)
    monkeypatch.setattr(decoding, "compiled_kernel", lambda *of: None)
    assert np.array_equal(decoding.decode(weight), formats.decode(weight))
