"""Weights that are held only as a rung packed them, or read where they lie: what they compute, and give back."""

import gc
import weakref

import pytest
import torch
from torch import nn

from rung import formats
from rung.nn import QuantEmbedding, QuantExperts, QuantWeight
from rung.nn.quantized import binding
from rung.nn.quantized.packed import PackedWeight, pack
from tests.nn.test_layers import build_pair
from tests.ops.conformance import FORMATS

SMALL = [format for format in FORMATS if format.block <= 512]


def packs(format, rows=48, columns=512):
    """Return whether a rung of this processor packs such a weight."""
    weight = build_pair(format, rows, columns)[0].stored
    return binding.pack(weight.encoded(), weight.device, "f32", 1).packing != "stored"


@pytest.mark.parametrize("format", SMALL, ids=lambda format: format.name)
def test_products_and_parts_are_those_of_before(format):
    layer, _ = build_pair(format)
    x, before = torch.randn(3, 512), {name: part.clone() for name, part in layer.stored.parts().items()}
    want, whole = layer(x), layer.weight.clone()
    pack(layer, "f32", 2)
    assert isinstance(layer.stored, PackedWeight) == packs(format)
    assert torch.equal(layer(x), want)
    assert torch.equal(layer.weight.clone(), whole)
    parts = layer.stored.parts()
    assert parts.keys() == before.keys()
    assert all(torch.equal(parts[name], before[name]) for name in before)
    assert not packs(format) or not [*layer.stored.parameters()]


def test_what_is_stored_is_let_go():
    layers = nn.Sequential(*(build_pair(formats.get("q8_0"))[0] for _ in range(3)))
    if not packs(formats.get("q8_0")):
        pytest.skip("nothing is packed on this processor")
    kept = [weakref.ref(part) for part in layers.parameters() if part.dtype == torch.uint8]
    pack(layers, "f32", 2)
    gc.collect()
    assert len(kept) == 3
    assert not [each for each in kept if each() is not None]


def test_a_weight_in_several_places_is_packed_once_and_one_that_is_looked_up_stays():
    layer, other, table = (
        build_pair(formats.get("q8_0"))[0],
        build_pair(formats.get("q8_0"))[0],
        build_pair(formats.get("q8_0"))[0],
    )
    other.stored = layer.stored
    looked = QuantEmbedding(table.stored)
    whole = nn.Sequential(layer, other, table, looked)
    pack(whole, "f32", 1)
    assert layer.stored is other.stored
    assert table.stored is looked.stored
    assert type(table.stored) is QuantWeight


def test_experts_are_packed():
    weights = [[build_pair(formats.get("q8_0"), rows, 64, seed=n)[0].stored for n in range(4)] for rows in (128, 64)]
    inner = nn.Module()
    inner.act_fn = nn.SiLU()
    experts = QuantExperts(inner, *weights)
    inputs = torch.randn(5, 64), torch.tensor([[0, 1], [2, 3], [1, 3], [0, 2], [3, 0]]), torch.rand(5, 2)
    with torch.no_grad():
        want = experts(*inputs)
        pack(experts, "f32", 2)
        torch.testing.assert_close(experts(*inputs), want, rtol=0, atol=0)
    kinds = {type(weight) for several in (experts.gate_up_proj, experts.down_proj) for weight in several}
    assert kinds == {PackedWeight if packs(formats.get("q8_0"), 64, 64) else QuantWeight}


def test_a_layer_that_is_asked_for_gradients_restores_its_weight():
    layer, plain = build_pair(formats.get("q8_0"))
    pack(layer, "f32", 1)
    x = torch.randn(2, 512, requires_grad=True)
    layer(x).sum().backward()
    grad = x.grad.clone()
    x.grad = None
    plain(x).sum().backward()
    torch.testing.assert_close(grad, x.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("format", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_sixteen_bits_are_multiplied_where_they_lie_and_decoded_into_a_copy(format, dtype):
    """The decoded copy may be written into: it must not be the weight."""
    layer, _ = build_pair(formats.get(format), 24, 32, dtype, bias=False)
    weight = layer.stored
    stored = binding.state(weight.parts(), weight.format, weight.shape).stored
    device, (part,) = torch.device("cpu"), weight.parts().values()
    assert stored.read(0, 24, device, dtype).data_ptr() == part.data_ptr()
    copy = weight.decode(dtype)
    assert torch.equal(copy, stored.read(0, 24, device, dtype))
    before = part.clone()
    copy.zero_()
    assert torch.equal(part, before)
    x = torch.randn(300, 32, dtype=dtype)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight.decode(dtype)), rtol=0.02, atol=0.02)
