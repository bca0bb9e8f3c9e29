"""Compiled encoders write the bytes of ``rung.formats``, whatever the weights; the errors they measure are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung import formats
from rung.core.errors import CannotEncode
from rung.formats import Encoded
from rung.kernels.cpu import target
from rung.kernels.cpu.encode import encoding
from rung.run.self_check.encoders import weights

pytestmark = pytest.mark.skipif(not target.features(), reason="nothing is compiled here")
ENCODERS = [name for name, fmt in formats.FORMATS.items() if fmt.encodes]
COMPILED = [*encoding.FORMATS, "nf4:256", "nf4:64:nested", "fp4:128", "fp4:64:nested"]
FLOATS = ("f32", "f16", "bf16")


def assert_alike(found: Encoded, expected: Encoded) -> None:
    assert (found.format, found.shape, found.parts.keys()) == (expected.format, expected.shape, expected.parts.keys())
    for part, array in expected.parts.items():
        assert found.parts[part].dtype == array.dtype
        np.testing.assert_array_equal(found.parts[part], array, part)


def test_kernels_know_the_formats_and_floats_by_the_same_names() -> None:
    from rung.kernels.cpu.encode import rows
    from rung.kernels.cpu.pack import row_errors

    assert rows.KINDS == FLOATS
    assert set(row_errors.FORMATS) <= {"f32", *encoding.FORMATS}
    assert set(encoding.FORMATS) <= set(ENCODERS) | {"nf4", "fp4"}


@pytest.mark.parametrize("kind", weights(1, 16))
@pytest.mark.parametrize("name", COMPILED)
def test_every_kind_of_weights(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = formats.get(name)
    before = formats.encode(weights(9, 1536)[kind], formats.get("f32"))
    importance = np.random.default_rng(1).exponential(size=1536).astype(np.float32)
    importance[:64] = 0
    expected = [formats.convert(before, fmt, importance=each) for each in (None, importance)]
    monkeypatch.setattr("rung.kernels.cpu.encode.encoding.formats.convert", None)  # all is done by the kernel
    for weighed, result in zip((None, importance), expected, strict=True):
        assert_alike(encoding.convert(before, fmt, threads=2, importance=weighed), result)


@pytest.mark.parametrize("name", COMPILED)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_shape_size_and_source(name: str, data: st.DataObject) -> None:
    fmt = formats.get(name)
    block = max(fmt.block, 16)
    columns = block * data.draw(st.integers(1, 2048 // block), "blocks")
    rows = data.draw(st.integers(1, 40), "rows")
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    values = generator.standard_t(data.draw(st.sampled_from([2, 5, 100]), "tails"), (rows, columns))
    values *= 10.0 ** generator.uniform(-9, 2, (rows, 1))
    stored = data.draw(st.sampled_from([*FLOATS, "q8_0"]) if columns % 32 == 0 else st.just("f32"), "stored")
    before = formats.encode(np.clip(values, -6e4, 6e4), formats.get(stored))
    if before.format == fmt:
        return
    importance = generator.exponential(size=columns).astype(np.float32) if data.draw(st.booleans(), "weighed") else None
    threads = data.draw(st.integers(1, 3), "threads")
    encoded = encoding.convert(before, fmt, "x", threads, importance)
    assert_alike(encoded, formats.convert(before, fmt, "x", importance=importance))
    exact, after = (formats.decode(each).astype(np.float64) for each in (before, encoded))
    sums = encoding.errors(before, encoded, threads)
    np.testing.assert_allclose(sums, np.stack([exact**2, (exact - after) ** 2], axis=2).sum(axis=1), rtol=1e-9)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("shape", [(3, 768), (5, 33), (0, 256), (4, 0)])
def test_every_format_of_the_registry(name: str, shape: tuple[int, int]) -> None:
    fmt = formats.get(name)
    before = formats.encode(np.random.default_rng(0).standard_normal(shape, dtype=np.float32), formats.get("bf16"))
    if fmt.divides(shape[1]):
        assert_alike(encoding.convert(before, fmt), formats.convert(before, fmt))


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("value", [np.nan, -np.inf, 3e38, -3e38])
def test_what_cannot_be_stored_is_refused_as_numpy_refuses_it(name: str, value: float) -> None:
    values = np.random.default_rng(0).standard_normal((40, 1024), dtype=np.float32)
    values[23, 700:702] = value, 0
    before, outcomes = Encoded(formats.get("f32"), values.shape, {"data": values.view(np.uint8)}), []
    for convert in (encoding.convert, formats.convert):
        try:
            outcomes.append(convert(before, formats.get(name), "blk.0.attn_q.weight", 2))
        except CannotEncode as error:
            outcomes.append(str(error))
    if isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        assert_alike(*outcomes)


@pytest.mark.parametrize("name", ["nf4:64:nested", "q5_1", "mxfp4", "f16"])
def test_errors_of_what_is_decoded_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_SLAB", 4096)
    before = formats.encode(weights(19, 1024)["normal"], formats.get("bf16"))
    after = formats.convert(before, formats.get(name))
    exact, decoded = (formats.decode(each).astype(np.float64) for each in (before, after))
    expected = np.stack([exact**2, (exact - decoded) ** 2], axis=2).sum(axis=1)
    np.testing.assert_allclose(encoding.errors(before, after, 2), expected, rtol=1e-9)


def test_parts_of_another_size_are_not_read_beyond_their_end() -> None:
    before = formats.encode(weights(4, 256)["normal"], formats.get("bf16"))
    short = Encoded(before.format, (8, 256), before.parts)
    assert not encoding.takes(short, formats.get("q8_0"))
    assert encoding.errors(short, before) is None


def test_processors_without_avx2_and_programs_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "can_compile", lambda: False)
    before = formats.encode(weights(4, 256)["normal"], formats.get("bf16"))
    encoded = encoding.convert(before, formats.get("q4_k"))
    assert_alike(encoded, formats.convert(before, formats.get("q4_k")))
    assert encoding.errors(before, encoded) is None
