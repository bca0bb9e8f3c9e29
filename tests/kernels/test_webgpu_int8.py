"""Products with activations as signed bytes through WebGPU, against NumPy on the same codes, on a software adapter."""

import numpy as np
import pytest

from rung.core.types import Case
from rung.core.value import FrozenDict
from rung.kernels.webgpu.layouts import has_integers, looks_up, widest
from rung.kernels.webgpu.packing import pack
from rung.ops import LADDERS, proof
from rung.ops.decode_step import self_check
from tests.support.devices import software_adapter

adapter = software_adapter()
#: One of each kind of codes and of scales, and what stays float32.
KINDS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "int8", "iq3_s", "tq2_0")
KINDS += ("nf4:64", "f16")
#: Of codes that stand for values that are not evenly spaced.
TABLES = ("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "iq2_xs", "iq1_s")


@pytest.mark.parametrize("name", KINDS + TABLES)
def test_products_and_the_activations_made_of_them(adapter, name):
    from rung.kernels.webgpu.int8.checking import wrong

    encoded = proof.weights(name, 96, proof.columns_of(name))
    assert wrong(adapter.id, encoded, 1) == ""


@pytest.mark.parametrize(
    ("name", "rows"), [*(("q4_k", rows) for rows in (4, 16, 64)), ("nf4:64", 4), ("nf4:64", 64), ("f16", 16)]
)
def test_several_rows_share_the_weights(adapter, name, rows):
    from rung.kernels.webgpu.int8.checking import wrong

    assert wrong(adapter.id, proof.weights(name, 64, 512), rows) == ""


def test_rounding_is_that_of_thirty_two_numbers_with_a_scale():
    from rung.kernels.webgpu.int8.units import rounded, units_of

    x = np.random.default_rng(1).standard_normal((3, 96), dtype=np.float32)
    x[1, 32:64] = 0
    units = units_of(x)
    codes, scales = units[..., :8].view(np.int8).astype(np.float32), units[..., 8:9].view(np.float32)
    np.testing.assert_allclose((codes * scales).reshape(3, 96), rounded(x), rtol=1e-6)
    exact = x.reshape(3, 3, 32).astype(np.float64)
    steps = [np.abs(exact).max(axis=2, keepdims=True) / most for most in range(127, 119, -1)]
    others = [((np.rint(exact / np.maximum(step, 1e-30)) * step - exact) ** 2).sum(axis=2) for step in steps]
    missed = ((rounded(x) - x).reshape(3, 3, 32).astype(np.float64) ** 2).sum(axis=2)
    assert (missed <= (1 + 1e-3) * np.min(others, axis=0)).all()
    assert missed.sum() < 0.85 * others[0].sum()
    np.testing.assert_array_equal(units[..., 9:11].view(np.int32), codes.reshape(3, 3, 2, 16).sum(axis=3))


def test_what_is_no_number_stays_none(adapter):
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.info import INFO
    from rung.kernels.webgpu.int8.tiles import Tile
    from rung.kernels.webgpu.int8.units import units_bytes, units_of
    from rung.kernels.webgpu.linear import Segment
    from rung.kernels.webgpu.matrix import Matrix

    device, x = gpu(adapter.id), np.ones((1, 64), np.float32)
    weight = Matrix.of_encoded(device, proof.weights("q8_0", 32, 64))
    for value in (np.nan, np.inf):
        units = units_of(x)
        units[0, 1, 8:9] = np.array([value], np.float32).view(np.uint32)
        y, result = device.buffer(128), device.buffer(units_bytes(1, 32))
        product = Tile((Segment(weight.layout, 32, weight.pieces[0].base),), 64, 1, 4, units=True, makes=True)
        words = weight.pieces[0].buffer
        others = [device.buffer(16), device.buffer(4 * INFO), device.upload([x]), y, device.upload([units]), result]
        device.run([device.bind(product.kernel(), [words, words, *others], *product.grid)])
        assert not np.isfinite(device.read(y, 0, 128).view(np.float32)).any()
        assert np.isnan(device.read(result, 32, 4).view(np.float32)).all()


def test_most_layouts_of_integers_are_known():
    names = ("q4_0", "q5_0", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "int8", "u8:128")
    assert not [name for name in names if not has_integers(widest(proof.formats.get(name)))]
    assert not has_integers(widest(proof.formats.get("f16")))


def test_codes_that_stand_for_signed_bytes_are_looked_up_and_fractions_are_not():
    layouts = {name: pack(proof.weights(name, 16, proof.columns_of(name)), True)[0] for name in (*TABLES, "nf4", "fp4")}
    assert [name for name, layout in layouts.items() if not looks_up(layout)] == ["nf4", "fp4"]
    assert [name for name, layout in layouts.items() if not has_integers(layout)] == ["nf4", "fp4"]


def test_wrong_shaders_are_found_by_the_self_check(adapter, monkeypatch):
    from rung.kernels.webgpu.int8 import tiles

    options = FrozenDict({"head_dim": 64, "linears": ("webgpu.rows",), "devices": 1})
    case, rung = Case("decode_step", "f16", "f32", (2, 64, 96, 83), options), LADDERS["decode_step"].rung("webgpu.int8")
    assert self_check.check(rung, case, adapter.id) == ""
    plain = tiles.Tile.kernel
    for right, fault in (
        ("sums += select(vec2<i32>(sum, 0)", "sums -= select(vec2<i32>(sum, 0)"),
        ("dot4I8Packed(c.high.w, z.w)", "dot4I8Packed(c.high.w, z.z)"),
        ("squares += dot(number, number)", "squares += dot(v[i], v[i])"),
        ("vec2<f32>(factor, squares)", "vec2<f32>(factor, 1.1 * squares)"),
        ("partial[own + 6u]", "partial[own + 4u]"),
        ("if (found_125 < least)", "if (found_125 > 1e30)"),
        ("if (found_125 < least)", "if (found_125 > least)"),
    ):
        faulty = lambda self, r=right, f=fault: (k := plain(self))._replace(code=k.code.replace(r, f))  # noqa: E731
        monkeypatch.setattr(tiles.Tile, "kernel", faulty)
        assert self_check.check(rung, case, adapter.id), right
