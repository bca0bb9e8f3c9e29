"""nf4 and fp4 are stored as bitsandbytes stores them: compared with what it made of the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from rung import formats
from rung.formats import Encoded
from rung.formats.families import codebook4
from tests.formats.make_bitsandbytes_fixture import CASES, FIXTURE, digest, name_of, weights


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(FIXTURE, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(("kind", "block", "nested", "count"), CASES)
def test_encoding_gives_the_bytes_of_bitsandbytes(
    kind: str, block: int, nested: bool, count: int, reference: dict[str, np.ndarray]
) -> None:
    case = name_of(kind, block, nested)
    parts = formats.encode(weights(count).reshape(1, -1), formats.get(case)).parts
    assert np.array_equal(digest(parts["data"]), reference[f"{case} data digest"])
    assert np.array_equal(parts["absmax"], reference[f"{case} absmax"])
    for part in ("nested_absmax", "nested_offset") if nested else ():
        assert np.array_equal(parts[part], reference[f"{case} {part}"])


@pytest.mark.parametrize("count", [1, 7, 8, 31, 64, 1000, 4097, 32767, 40001])
def test_nested_scales_are_those_of_bitsandbytes_to_the_bit(count: int) -> None:
    """From 32,768 scales on torch's sum of them depends on the number of its threads: with one it is this."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes.functional")
    absmax = np.random.default_rng(count).gamma(3, 0.01, count).astype(np.float32)
    absmax[::7] = absmax.mean() * (1 + np.float32(1e-6))  # offsets far below the largest of their block
    nested = codebook4.nest(absmax)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        offset = torch.from_numpy(absmax).mean()
    finally:
        torch.set_num_threads(threads)
    codes, state = functional.quantize_blockwise(torch.from_numpy(absmax) - offset, blocksize=256)
    assert nested["nested_offset"][0] == offset.numpy()
    assert np.array_equal(nested["absmax"], codes.numpy())
    assert np.array_equal(nested["nested_absmax"], state.absmax.numpy())


@pytest.mark.parametrize(("kind", "block", "nested", "count"), CASES)
def test_decoding_gives_the_values_of_bitsandbytes(
    kind: str, block: int, nested: bool, count: int, reference: dict[str, np.ndarray]
) -> None:
    case = name_of(kind, block, nested)
    fmt = formats.get(case)
    # The data is checked above; the scales are theirs.
    parts = formats.encode(weights(count).reshape(1, -1), fmt).parts
    theirs = {part: parts[part] if part == "data" else reference[f"{case} {part}"] for part in parts}
    decoded = formats.decode(Encoded(fmt, (1, count), theirs))[0]
    if f"{case} decoded" in reference:
        assert np.array_equal(decoded, reference[f"{case} decoded"])
        assert np.array_equal(theirs["data"], reference[f"{case} data"])
    assert np.array_equal(digest(decoded), reference[f"{case} decoded digest"])


def test_the_first_weight_of_a_pair_is_in_the_high_nibble() -> None:
    encoded = formats.encode(np.array([[1.0, -1.0, 0.0]], np.float32), formats.get("nf4"))
    assert encoded.parts["data"].tolist() == [0xF0, 0x77]


def test_scales_of_a_range_of_blocks() -> None:
    encoded = formats.encode(weights(64 * 700).reshape(7, -1), formats.get("nf4:64:nested"))
    whole = codebook4.scales(encoded)
    assert len(whole) == 700
    assert np.array_equal(codebook4.scales(encoded, 250, 520), whole[250:520])
    plain = formats.encode(weights(64 * 700).reshape(7, -1), formats.get("nf4")).parts["absmax"]
    assert formats.sqnr(plain, whole) > 30
