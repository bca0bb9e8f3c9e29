"""Scales of blocks that are NaN or infinite, in every format that has float16 scales."""

from pathlib import Path

import numpy as np
import pytest

from rung import formats
from rung.core.errors import BadFile
from rung.formats import Encoded
from rung.models import open_card
from rung.models.reader import check_scales, find_damage

HALF = {
    name: [field for field in layout.names if layout[field] == np.float16]
    for name, fmt in formats.FORMATS.items()
    if (layout := formats.layout(fmt)) is not None
}
PLACES = [(name, field) for name, fields in HALF.items() for field in fields]


def test_the_formats_with_such_scales_are_known():
    without = {name for name, fields in HALF.items() if not fields}
    assert without <= {"iq1_m", "mxfp4", "nvfp4"}
    assert {"q4_0", "q4_k", "q6_k", "q8_0", "iq4_nl"} <= set(HALF) - without


@pytest.mark.parametrize(("name", "field"), PLACES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_damage_is_found_and_its_row_named(name, field, value):
    fmt = formats.get(name)
    blocks = np.zeros((3, 2), formats.layout(fmt))
    for other in HALF[name]:
        blocks[other] = 65504.0
        blocks[other][0] = -6e-8
    encoded = Encoded(fmt, (3, 2 * fmt.block), {"data": blocks.view(np.uint8).reshape(3, -1)})
    check_scales(encoded, "blk.0.ffn_up.weight")
    blocks[field][1, 1] = value
    with pytest.raises(BadFile, match=r"blk\.0\.ffn_up\.weight is damaged: a scale in row 1 is (nan|-?inf)"):
        check_scales(encoded, "blk.0.ffn_up.weight")


def test_damage_far_from_the_beginning(monkeypatch):
    monkeypatch.setattr("rung.models.reader.BLOCKS_AT_ONCE", 5)
    encoded = formats.encode(np.random.default_rng(0).normal(size=(9, 64)), formats.get("q8_0"))
    data = encoded.parts["data"].copy()
    blocks = data.reshape(-1).view(formats.layout(encoded.format))
    blocks["d"][17] = np.nan
    with pytest.raises(BadFile, match="row 8"):
        check_scales(Encoded(encoded.format, encoded.shape, {"data": data}), "t")
    check_scales(encoded, "t")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "int8", "nf4"])
def test_formats_without_blocks_are_left_alone(name):
    weights = np.ones((2, 64), np.float32)
    check_scales(formats.encode(weights, formats.get(name)), "t")


def test_the_damaged_tensor_of_a_file_is_named(tmp_path):
    whole = Path(__file__).parent.parent / "fixtures" / "gguf" / "llama-q8_0.gguf"
    assert find_damage(open_card(whole)) is None
    path = tmp_path / "x.gguf"
    data = bytearray(whole.read_bytes())
    tensor = open_card(whole).tensor("layers.0.down")
    assert tensor.format == "q8_0"
    data[tensor.offset : tensor.offset + 2] = b"\xff\x7f"
    path.write_bytes(data)
    damage = find_damage(open_card(path))
    assert isinstance(damage, BadFile)
    assert damage.cause == "Tensor blk.0.ffn_down.weight is damaged: a scale in row 0 is nan"
