"""Encoders: their floor in dB at every shape and scale, their size, their bytes beside gguf's, their memory."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rung import formats
from rung.core.errors import CannotEncode
from rung.core.types import Format
from rung.formats import sqnr

ENCODERS = [
    *(name for name, fmt in formats.FORMATS.items() if fmt.encodes),
    *("nf4:128", "nf4:256:nested", "nf4:512", "nf4:1024:nested", "nf4:2048", "nf4:4096:nested", "nf4:4096"),
    *("fp4:128:nested", "fp4:256", "fp4:512:nested", "fp4:1024", "fp4:2048:nested", "fp4:4096"),
]
by_encoder = pytest.mark.parametrize("name", ENCODERS)
Floats = npt.NDArray[np.float32]

#: Formats with float16 in them: the largest weight in units of the largest float16, and the widest gap between
#: codes in units of the largest weight.
HALVES = {
    "f16": (1, 2**-11),
    "q4_0": (8, 1 / 8),
    "q4_1": (1, 2 / 15),
    "q5_0": (16, 1 / 16),
    "q5_1": (1, 2 / 31),
    "q8_0": (127, 1 / 127),
    "q3_k": (4 * 32, 1 / 4),
    "q4_k": (63, 2 / 15),
    "q5_k": (63, 2 / 31),
    "q6_k": (32 * 128, 1 / 32),
    "iq4_nl": (127, 24 / 127),
}
STEP = 2.0**-24


def gaussian(rows: int, columns: int, seed: int = 0) -> Floats:
    """Normal weights with a deviation of 1."""
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def round_trip(weights: Floats, fmt: Format) -> Floats:
    """Encoded and decoded, its size checked on the way."""
    encoded = formats.encode(weights, fmt)
    assert encoded.nbytes == fmt.bytes(weights.shape)
    assert encoded.shape == weights.shape
    decoded = formats.decode(encoded)
    assert decoded.shape == weights.shape
    assert decoded.dtype == np.float32
    return decoded


@by_encoder
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_the_floor_holds_at_odd_shapes(name: str, data: st.DataObject) -> None:
    fmt = formats.get(name)
    # Enough weights that chance moves the SQNR by less than the margin of the floor.
    step = fmt.block if fmt.layout == "rows" else 1
    columns = step * data.draw(st.integers(-(-40 // step), max(8192 // step, 2)), "columns")
    enough = max(20_000, 48 * fmt.block)
    rows = -(-enough // columns) + data.draw(st.integers(0, 5), "more rows")
    weights = gaussian(rows, columns, seed=data.draw(st.integers(0, 2**32 - 1), "seed"))
    assert sqnr(weights, round_trip(weights, fmt)) >= fmt.floor_db


@by_encoder
@given(exponent=st.floats(-30, 30))
@settings(max_examples=25, deadline=None)
@example(exponent=-6.0)
@example(exponent=-8.0)
@example(exponent=4.9)
def test_every_scale_is_held_to_the_floor_or_to_a_step_or_refused(name: str, exponent: float) -> None:
    fmt = formats.get(name)
    weights = (gaussian(12, 2048).astype(np.float64) * 10.0**exponent).astype(np.float32)
    peak = float(np.abs(weights).max())
    largest, gap = HALVES.get(fmt.name, (np.inf, 0.0))
    try:
        decoded = round_trip(weights, fmt)
    except CannotEncode:
        # A fitted scale may be above the one that the largest weight needs, by a quarter for IQ4_NL.
        assert peak > 65504 * largest * 0.75
        return
    if fmt.name in HALVES and exponent < -3:
        # A step of the stored scale is at most one of float16 above the fitted one; the codebook of IQ4_NL has gaps
        # of 24 of them.
        worst = float(np.abs(weights - decoded).max())
        coarse = STEP * (24 if fmt.name == "iq4_nl" else 1)
        assert worst <= 1.25 * gap * peak + coarse or sqnr(weights, decoded) >= fmt.floor_db
    else:
        assert sqnr(weights, decoded) >= fmt.floor_db


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-9, 1e-8, 4e-8])
def test_weights_below_the_smallest_scale_err_by_less_than_the_smallest_step(name: str, scale: float) -> None:
    weights = gaussian(8, 512) * np.float32(scale)
    decoded = round_trip(weights, formats.get(name))
    # The smallest gap between values of IQ4_NL is 9; no other format has gaps above one scale.
    smallest = STEP * (9 if name == "iq4_nl" else 1)
    assert np.abs(weights - decoded).max() < smallest


@by_encoder
@pytest.mark.parametrize("constant", [0.0, -0.0, 1.0003, -0.217, -1.7])
def test_zero_and_constant_rows_beside_others(name: str, constant: float) -> None:
    fmt = formats.get(name)
    weights = gaussian(60, 4096)
    weights[[3, 4, 11]] = constant
    decoded = round_trip(weights, fmt)
    assert sqnr(weights, decoded) >= fmt.floor_db
    if constant == 0:
        assert not decoded[[3, 4, 11]].any()


@by_encoder
@pytest.mark.parametrize("constant", [1.0003, -0.0217, 3.4e-3, -812.7])
def test_a_constant_weight_is_rounded_as_its_scale_is(name: str, constant: float) -> None:
    """Every code is the largest one then, so the rounding of the scale is all that is lost."""
    fmt = formats.get(name)
    # Half a unit in the last place: 11 bits of float16, 8 of bfloat16; 5 lies between the 4 and the 6 of MXFP4.
    lost = {"f16": 2**-11, "bf16": 2**-8, "mxfp4": 0.2}.get(fmt.name, 10 ** (-fmt.floor_db / 20))
    weights = np.full((3, 4096), constant, np.float32)
    assert np.abs(round_trip(weights, fmt) / weights - 1).max() <= lost


@by_encoder
def test_all_zero_and_empty_weights(name: str) -> None:
    fmt = formats.get(name)
    assert not round_trip(np.zeros((3, 512), np.float32), fmt).any()
    assert round_trip(np.zeros((0, 512), np.float32), fmt).shape == (0, 512)
    assert round_trip(np.zeros((4, 0), np.float32), fmt).shape == (4, 0)


@by_encoder
def test_outliers_stay_in_their_block(name: str) -> None:
    """A weight 1,000 times larger is held, and the next block (row for int8) does not notice."""
    fmt = formats.get(name)
    plain, spoilt = gaussian(2, 4096), gaussian(2, 4096)
    spoilt[0, 77] = -1000.0
    decoded = round_trip(spoilt, fmt)
    assert abs(decoded[0, 77] + 1000.0) <= 1000.0 * 10 ** (-fmt.floor_db / 20) * 2
    if not fmt.nested:
        assert np.array_equal(decoded[1], round_trip(plain, fmt)[1])


@pytest.mark.parametrize("name", ["nf4", "fp4", "nf4:64:nested"])
def test_flat_blocks_run_across_rows(name: str) -> None:
    fmt = formats.get(name)
    weights = gaussian(7, 143)
    flat, shaped = formats.encode(weights.reshape(1, -1), fmt), formats.encode(weights, fmt)
    assert all(np.array_equal(flat.parts[part], shaped.parts[part]) for part in shaped.parts)
    assert len(shaped.parts["absmax"]) == -(-7 * 143 // 64)
    assert len(shaped.parts["data"]) == -(-7 * 143 // 2)


def kinds_of_weights() -> dict[str, Floats]:
    """Weights of several shapes of distribution."""
    generator = np.random.default_rng(3)
    tied = np.round(gaussian(16, 1024) * 4) / 4
    return {
        "gaussian": gaussian(16, 1024) * np.float32(0.02),
        "heavy": generator.standard_t(3, (16, 1024)).astype(np.float32),
        "uniform": generator.uniform(-1, 1, (16, 1024)).astype(np.float32),
        "shifted": gaussian(16, 1024) + np.float32(3),
        "ties": tied.astype(np.float32),
        "sparse": np.where(generator.random((16, 1024)) < 0.9, np.float32(0), gaussian(16, 1024)),
    }


@pytest.mark.parametrize("weights", kinds_of_weights().values(), ids=list(kinds_of_weights()))
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_bytes_are_those_of_the_gguf_package(name: str, weights: Floats) -> None:
    theirs = gguf.quantize(weights, gguf.GGMLQuantizationType[name]).view(np.uint8)
    assert np.array_equal(formats.encode(weights, formats.get(name)).parts["data"], theirs)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0"])
def test_zeros_of_both_signs_have_the_bytes_of_the_gguf_package(name: str) -> None:
    zeros = np.where(np.random.default_rng(0).random((16, 1024)) < 0.5, np.float32(-0.0), np.float32(0))
    theirs = gguf.quantize(zeros, gguf.GGMLQuantizationType[name]).view(np.uint8)
    assert np.array_equal(formats.encode(zeros, formats.get(name)).parts["data"], theirs)


@pytest.mark.parametrize("weights", kinds_of_weights().values(), ids=list(kinds_of_weights()))
def test_mxfp4_is_no_worse_than_the_gguf_package(weights: Floats) -> None:
    theirs = gguf.dequantize(gguf.quantize(weights, gguf.GGMLQuantizationType.MXFP4), gguf.GGMLQuantizationType.MXFP4)
    assert sqnr(weights, round_trip(weights, formats.get("mxfp4"))) >= sqnr(weights, theirs)


# Measured with ggml_quantize_chunk of llama.cpp (in llama-cpp-python 0.3.36) on these weights, without an importance
# matrix: SQNR in dB on Gaussian and on Student-t (4 degrees of freedom) weights.
LLAMA_CPP = {"q4_k": (22.94, 21.25), "q5_k": (28.85, 27.16), "q6_k": (35.02, 32.78), "iq4_nl": (22.38, 20.62)}


@pytest.mark.parametrize(("name", "theirs"), LLAMA_CPP.items(), ids=list(LLAMA_CPP))
def test_scale_searches_are_no_worse_than_llama_cpp(name: str, theirs: tuple[float, float]) -> None:
    generator = np.random.default_rng(0)
    normal = generator.standard_normal((128, 4096), dtype=np.float32) * 0.02
    student = generator.standard_t(4, (128, 4096)).astype(np.float32) * 0.02
    for weights, at_least in zip((normal, student), theirs, strict=True):
        assert sqnr(weights, round_trip(weights, formats.get(name))) >= at_least


@by_encoder
def test_a_weight_is_encoded_in_pieces(name: str) -> None:
    """Beside the result, encoding and decoding hold a few megabytes, whatever the size of the weight."""
    fmt = formats.get(name)
    weights = gaussian(1024, 4096)
    tracemalloc.start()
    encoded = formats.encode(weights, fmt)
    extra = tracemalloc.get_traced_memory()[1] - encoded.nbytes
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    formats.decode(encoded)
    decoding = tracemalloc.get_traced_memory()[1] - before - weights.nbytes
    tracemalloc.stop()
    assert extra < 8 * 2**20
    assert decoding < 8 * 2**20


@by_encoder
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    fmt = formats.get(name)
    weights = gaussian(67, 4096)
    alone, shared = formats.encode(weights, fmt), formats.encode(weights, fmt, threads=3)
    assert all(np.array_equal(alone.parts[part], shared.parts[part]) for part in alone.parts)


def test_a_block_alone_has_the_bytes_that_it_has_among_others() -> None:
    """NumPy adds a single column in another order than each of many, which changed one of these."""
    weights = np.random.default_rng(3).standard_normal((910, 32)).astype(np.float32)[890:]
    expected = formats.encode(weights, formats.get("iq4_nl")).parts["data"]
    alone = [formats.encode(row[None], formats.get("iq4_nl")).parts["data"][0] for row in weights]
    assert np.array_equal(alone, expected)


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "int8", "nf4"])
def test_of_several_bad_rows_the_first_is_named_whatever_the_threads(name: str) -> None:
    weights = gaussian(100, 4096)
    weights[90, 5] = weights[60, 7] = weights[23, 4095] = np.nan
    with pytest.raises(CannotEncode, match="Row 23 of weight holds NaN"):
        formats.encode(weights, formats.get(name), threads=4)


@pytest.mark.parametrize("target", ["q4_k", "q8_0", "int8", "nf4:64:nested", "f32"])
@pytest.mark.parametrize("stored", ["f32", "bf16", "q6_k", "int8", "nf4"])
def test_converting_is_encoding_what_is_decoded(stored: str, target: str) -> None:
    source = formats.encode(gaussian(37, 2816), formats.get(stored))
    converted = formats.convert(source, formats.get(target))
    expected = formats.encode(formats.decode(source), formats.get(target))
    assert converted.parts.keys() == expected.parts.keys()
    assert all(np.array_equal(converted.parts[part], expected.parts[part]) for part in expected.parts)


def test_converting_to_the_same_format_copies_nothing() -> None:
    source = formats.encode(gaussian(4, 64), formats.get("q8_0"))
    assert formats.convert(source, formats.get("q8_0")) is source


@pytest.mark.parametrize("name", ["q4_0", "int8", "nf4", "q4_k"])
def test_views_and_other_dtypes_encode_like_their_float32_copy(name: str) -> None:
    fmt = formats.get(name)
    half = gaussian(512, 512).astype(np.float16)
    for weights in (half, half.T, half[::2, :256], half.astype(np.float64), np.asfortranarray(half.astype(np.float32))):
        plain = formats.encode(np.ascontiguousarray(weights, np.float32), fmt)
        assert all(np.array_equal(formats.encode(weights, fmt).parts[p], plain.parts[p]) for p in plain.parts)


@given(row=st.integers(0, 6), column=st.integers(0, 511), value=st.sampled_from([np.nan, np.inf, -np.inf]))
@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=5, deadline=None)
def test_nan_and_inf_are_refused_with_their_place(name: str, row: int, column: int, value: float) -> None:
    weights = gaussian(7, 512)
    weights[row, column] = value
    with pytest.raises(CannotEncode) as caught:
        formats.encode(weights, formats.get(name), name="blk.0.attn_q.weight")
    assert f"Row {row} of blk.0.attn_q.weight holds {'NaN' if np.isnan(value) else 'Inf'}" == caught.value.cause
    assert f"column {column}" in caught.value.facts[0]
    assert "hf download" in caught.value.ways_out[0]


@pytest.mark.parametrize("name", HALVES)
@given(row=st.integers(0, 39), sign=st.sampled_from([-1, 1]))
@settings(max_examples=5, deadline=None)
def test_a_scale_that_overflows_is_refused_with_its_row(name: str, row: int, sign: int) -> None:
    weights = gaussian(40, 4096)
    # The other end of the range too, so that formats with a minimum need a scale of their own.
    weights[row, 1000:1002] = 3e38 * sign, 0
    with pytest.raises(CannotEncode) as caught:
        formats.encode(weights, formats.get(name), name="output.weight")
    assert caught.value.cause.startswith(f"Row {row} of output.weight ")
    assert "65504 of float16" in caught.value.cause
    assert caught.value.ways_out[0].startswith("rung run MODEL --format int8")


def test_bf16_refuses_what_rounds_to_infinity() -> None:
    largest = np.float32(3.3895314e38)
    assert np.isfinite(round_trip(np.full((1, 2), largest), formats.get("bf16"))).all()
    with pytest.raises(CannotEncode, match=r"Row 1 of head holds 3\.4\d*e\+38, above the 3\.3895e38 of bfloat16"):
        formats.encode(np.array([[1.0], [3.4e38]], np.float32), formats.get("bf16"), name="head")


@pytest.mark.parametrize("name", ["int8", "nf4", "nf4:64:nested", "fp4", "mxfp4"])
def test_scales_in_float32_hold_the_largest_weights(name: str) -> None:
    weights = gaussian(4, 512)
    weights *= np.float32(3.4e38) / np.abs(weights).max()
    fmt = formats.get(name)
    # MXFP4 cannot round the largest ones up: 4 * 2^126 is infinite.
    assert sqnr(weights, round_trip(weights, fmt)) >= fmt.floor_db - (1.0 if name == "mxfp4" else 0.4)


@pytest.mark.parametrize(("name", "levels"), [("q4_1", 16), ("q5_1", 32)])
def test_a_minimum_that_float16_rounds_up_leaves_no_weight_below_it(name, levels):
    """The scale is too small for float16: the minimum is rounded down, and a code reaches each weight."""
    weights = np.linspace(1.0006, 1.0014, 32, dtype=np.float32)[None]
    assert weights[0, 0] < np.float16(weights[0, 0]) < weights[0, -1]
    decoded = formats.decode(formats.encode(weights, formats.get(name)))
    assert np.abs(decoded - weights).max() < (weights[0, -1] - 1) / (levels - 1)


@pytest.mark.parametrize("name", [name for name, fmt in formats.FORMATS.items() if fmt.encodes])
@pytest.mark.parametrize("rows", [1, 3])
def test_weights_are_left_as_they_were(name, rows):
    fmt = formats.get(name)
    weights = np.random.default_rng(0).standard_normal((rows, max(fmt.block, 32)), dtype=np.float32)
    before = weights.copy()
    formats.encode(weights, fmt)
    np.testing.assert_array_equal(weights, before)
