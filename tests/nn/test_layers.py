"""Quantized layers beside plain ones that hold the same decoded weight; what others do with them changes nothing."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rung import formats
from rung.core.errors import CannotEncode, UsageError
from rung.formats import Encoded
from rung.nn import QuantEmbedding, QuantLinear, QuantWeight
from rung.nn.quantized import binding
from rung.nn.quantized.binding import parts_of
from rung.nn.quantized.weight import encode
from tests.ops.conformance import FORMATS, weight

NF4, Q4_K, INT8 = (formats.get(name) for name in ("nf4", "q4_k", "int8"))
SMALL = [format for format in FORMATS if format.block <= 512]


def build_pair(format, rows=48, columns=512, dtype=torch.float32, bias=True, seed=1):
    """A quantized layer and the plain one with its decoded weight."""
    encoded = weight(format, rows, columns, seed)
    extra = torch.randn(rows, generator=torch.Generator().manual_seed(seed)).to(dtype) if bias else None
    layer = QuantLinear(QuantWeight.of(encoded, dtype), extra)
    plain = nn.Linear(columns, rows, bias=bias, dtype=dtype)
    with torch.no_grad():
        plain.weight.copy_(torch.from_numpy(formats.decode(encoded)))
        if bias:
            plain.bias.copy_(extra)
    return layer, plain


def some(*shape, dtype=torch.float32, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: Encoded, other: Encoded) -> bool:
    return one.format == other.format and all(np.array_equal(one.parts[p], other.parts[p]) for p in other.parts)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_the_parts_are_those_of_the_encoder(format):
    encoded = weight(format, 6, max(512, format.block))
    want = {name: (part.shape, getattr(torch, str(part.dtype))) for name, part in encoded.parts.items()}
    assert parts_of(format, encoded.shape) == want
    if format.encodes and format.layout == "flat":  # odd counts, short last blocks
        odd = formats.encode(np.ones((3, 43), np.float32), format)
        want = {name: (part.shape, getattr(torch, str(part.dtype))) for name, part in odd.parts.items()}
        assert parts_of(format, (3, 43)) == want


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", ["nf4", "nf4:64:nested", "q4_0", "int8", "bf16"])
def test_16_bits_are_encoded_as_what_they_stand_for(format, dtype):
    values = some(6, 128, dtype=dtype)[:, :64]
    encoded = encode(values, formats.get(format), "weight")
    assert same(encoded, formats.encode(values.float().numpy(), formats.get(format)))
    values[4, 7] = math.inf
    if format != "bf16":
        with pytest.raises(CannotEncode, match=r"Row 4.* Inf"):
            encode(values, formats.get(format), "weight")


@pytest.mark.parametrize("format", SMALL, ids=lambda f: f.name)
def test_training_computes_what_the_decoded_weight_does(format):
    """Forward, gradients to input and bias, in the modes in which activations must not be quantized."""
    layer, plain = build_pair(format)
    for training in (True, False):
        layer.train(training)
        x = some(2, 5, 512).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        gradients = x.grad, layer.bias.grad.clone()
        twin = x.detach().clone().requires_grad_()
        want = plain(twin)
        want.square().sum().backward()
        for own, other in zip((y, *gradients), (want, twin.grad, plain.bias.grad), strict=True):
            # by norm: libraries sum in orders of their own, and single values are near zero
            assert (own - other).norm() < 2e-6 * other.norm()
        layer.bias.grad = plain.bias.grad = None


def test_training_without_gradients_quantizes_no_activations():
    layer, plain = build_pair(Q4_K)
    x = some(3, 512)
    with torch.no_grad():
        torch.testing.assert_close(layer.train()(x), plain(x))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_inference_is_near_and_in_the_dtype_of_the_input(rows, dtype):
    layer, plain = build_pair(NF4, dtype=torch.float32)
    x = some(rows, 512, dtype=dtype)
    with torch.no_grad():
        y = layer.eval()(x)
        want = plain.double()(x.double())
    assert y.dtype == dtype
    assert formats.sqnr(want.numpy(), y.double().numpy()) > 38


def test_second_gradients():
    layer, plain = build_pair(formats.get("q8_0"), bias=False)
    results = []
    for each in (layer, plain):
        x = some(4, 512).requires_grad_()
        (g,) = torch.autograd.grad(each(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(g.square().sum(), x)
        results.append(second)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-2)


def test_compute_dtype():
    layer, plain = build_pair(NF4)
    layer.compute_dtype = torch.float32
    x = some(4, 512, dtype=torch.float16).requires_grad_()
    y = layer(x)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, plain(x.float()).half())


def test_autocast():
    layer, plain = build_pair(NF4)
    with torch.autocast("cpu", torch.bfloat16):
        y, want = layer(some(4, 512)), plain(some(4, 512))
    assert y.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(y, want, rtol=2e-2, atol=0.5)


def test_gradient_checkpointing():
    from torch.utils.checkpoint import checkpoint

    layer, _ = build_pair(NF4)
    gradients = []
    for use in (False, True):
        x = some(4, 512).requires_grad_()
        y = checkpoint(layer, x, use_reentrant=False) if use else layer(x)
        y.square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ["nf4", "nf4:64:nested", "int8", "q4_k", "bf16"])
def test_a_state_dictionary_goes_round(name):
    layer, _ = build_pair(formats.get(name))
    with torch.no_grad():
        before = layer.eval()(some(1, 512))  # binds, and packs where there is a packing
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    empty = QuantLinear(QuantWeight.empty(layer.stored.format, (48, 512), torch.float32, "cpu"), torch.zeros(48))
    empty.load_state_dict(torch.load(file, weights_only=True))
    assert same(empty.stored.encoded(), weight(formats.get(name), 48, 512))
    with torch.no_grad():
        assert torch.equal(empty.eval()(some(1, 512)), before)


def test_a_state_dictionary_of_another_format_does_not_fit():
    layer, _ = build_pair(NF4)
    other, _ = build_pair(formats.get("fp4"))
    with pytest.raises(RuntimeError, match="fp4_64"):
        layer.load_state_dict(other.state_dict())


def test_new_values_in_the_parts_are_noticed():
    layer, _ = build_pair(NF4)
    other, plain = build_pair(NF4, seed=2)
    x = some(1, 512)
    with torch.no_grad():
        layer.eval()(x)
        layer.load_state_dict(other.state_dict())
        assert torch.equal(layer(x), other.eval()(x))
        layer.train().stored.get_parameter("absmax").mul_(2)
        torch.testing.assert_close(layer(x) - plain.bias, 2 * (plain(x) - plain.bias))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies(copied):
    layer, _ = build_pair(Q4_K)
    x = some(2, 512)
    with torch.no_grad():
        y = layer.eval()(x)
        twin = copied(layer)
        assert torch.equal(twin(x), y)
        assert same(twin.stored.encoded(), layer.stored.encoded())
        twin.stored.codes.zero_()
        assert torch.equal(layer(x), y)


def test_casts_leave_the_parts_alone():
    layer, _ = build_pair(NF4)
    before = layer.stored.encoded()
    before = Encoded(before.format, before.shape, {name: part.copy() for name, part in before.parts.items()})
    for cast in (lambda: layer.half(), lambda: layer.to(torch.bfloat16), lambda: layer.double(), lambda: layer.cpu()):
        cast()
        assert same(layer.stored.encoded(), before)
    assert layer.weight.dtype == layer.bias.dtype == torch.float64
    assert layer.half().dequantize().weight.dtype == torch.float16
    assert layer.to("meta").weight.device.type == "meta"


def test_parts_may_be_plain_attributes():
    """As in replicas of ``nn.DataParallel`` and between the passes of FSDP1."""
    layer, plain = build_pair(NF4)
    x = some(3, 512)
    for name, part in list(layer.stored._parameters.items()):
        delattr(layer.stored, name)
        setattr(layer.stored, name, part.detach().clone())
    assert not list(layer.stored.parameters())
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(layer.dequantize().weight, plain.weight)


def test_packed_copies_live_as_long_as_their_layer():
    layer, _ = build_pair(NF4)
    with torch.no_grad():
        layer.eval()(some(1, 512))
    kept = len(binding.states)
    del layer
    assert len(binding.states) < kept


def test_parts_that_were_cast_behind_the_back_of_the_layer_are_refused():
    layer, _ = build_pair(NF4)
    layer.stored.absmax = nn.Parameter(layer.stored.absmax.half(), requires_grad=False)
    with pytest.raises(UsageError, match=r"absmax of a weight in nf4:64 is .* in torch.float16"):
        layer(some(1, 512))


def test_the_weight_looks_like_a_tensor():
    layer, plain = build_pair(NF4, dtype=torch.bfloat16)
    shown, x = layer.weight, some(3, 512, dtype=torch.bfloat16)
    assert isinstance(shown, torch.Tensor)
    assert (shown.shape, shown.dtype, shown.device, shown.requires_grad) == (
        plain.weight.shape,
        torch.bfloat16,
        plain.weight.device,
        False,
    )
    assert torch.equal(shown.data, plain.weight)
    assert torch.equal(shown.float().t(), plain.weight.float().t())
    assert torch.equal(functional.linear(x, shown, layer.bias), plain(x))
    assert torch.equal(x @ shown.T, x @ plain.weight.T)
    assert torch.equal(copy.deepcopy(shown), plain.weight)
    assert "nf4:64" in repr(shown)


@pytest.mark.parametrize("format", [f for f in SMALL if f.encodes], ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_setting_the_same_values_changes_no_bit_and_others_only_their_rows(format, dtype):
    layer, _ = build_pair(format, dtype=dtype)
    before = {name: part.clone() for name, part in layer.stored.parts().items()}
    layer.weight.data += torch.zeros(48, 512)
    assert all(torch.equal(part, before[name]) for name, part in layer.stored.parts().items())
    delta = torch.zeros(48, 512)
    delta[7] = some(512)
    want = layer.weight.data + delta.to(dtype)
    layer.weight.data += delta.to(dtype)
    after = layer.stored.decode(torch.float32)
    assert formats.sqnr(want[7].float().numpy(), after[7].numpy()) > min(format.floor_db, 60) - 4
    if format.layout == "flat":
        rest = ~torch.isin(torch.arange(48), torch.tensor([7]))
        assert formats.sqnr(want[rest].float().numpy(), after[rest].numpy()) > (25 if format.nested else 50)
    else:
        for name, part in layer.stored.parts().items():
            kept = [row for row in range(48) if row != 7]
            assert torch.equal(part[kept], before[name][kept])


def test_in_place_functions_encode():
    layer, plain = build_pair(formats.get("q8_0"))
    layer.weight.mul_(2.0)
    assert formats.sqnr((2 * plain.weight).detach().numpy(), layer.stored.decode().numpy()) > 50


def test_new_values_for_what_rung_only_reads_are_refused():
    layer, _ = build_pair(formats.get("q2_k"))
    with pytest.raises(UsageError, match="stored in q2_k, which rung reads and does not write"):
        layer.weight.data += 1
    with pytest.raises(UsageError, match=r"shape \[48, 512\]; the new values have \[2\]"):
        layer.weight.data = torch.zeros(2)


def test_no_rows_and_many_dimensions():
    layer, _ = build_pair(NF4)
    with torch.no_grad():
        assert layer(some(0, 512)).shape == (0, 48)
        assert layer(some(512)).shape == (48,)
        assert layer(some(2, 3, 4, 512)).shape == (2, 3, 4, 48)


@pytest.mark.parametrize("columns", [100, 43])
def test_rows_that_no_kernel_takes(columns):
    values = np.random.default_rng(1).standard_normal((30, columns), np.float32)
    layer = QuantLinear(QuantWeight.of(formats.encode(values, NF4), torch.float32))
    dense = layer.stored.decode()
    for x in (some(1, columns), some(20, columns)):
        with torch.no_grad():
            torch.testing.assert_close(layer.eval()(x), x @ dense.T, rtol=1e-4, atol=1e-4)


def test_a_weight_larger_than_a_slab(monkeypatch):
    monkeypatch.setattr("rung.kernels.gpu.stored.SLAB", 16 * 512 * 4)
    layer, plain = build_pair(NF4)
    x, twin = some(4, 512).requires_grad_(), some(4, 512).requires_grad_()
    layer(x).square().sum().backward()
    plain(twin).square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", [NF4, Q4_K], ids=lambda f: f.name)
def test_decoding_to_16_bits_rounds_what_is_decoded_to_32(monkeypatch, format, dtype):
    layer, plain = build_pair(format)
    monkeypatch.setattr("rung.kernels.gpu.stored.SLAB", 5 * 512 * 4)  # does not divide the rows
    assert torch.equal(layer.stored.decode(dtype), plain.weight.detach().to(dtype))


def test_outliers_are_left_out_of_the_quantized_product():
    """LLM.int8(): with a few huge columns the error falls to that of rows without them."""
    layer, plain = build_pair(INT8, 64, 1024, bias=False)
    x = some(24, 1024)
    x[:, [3, 700]] *= 100
    errors = []
    with torch.no_grad():
        want = plain(x)
        for threshold in (0.0, 6.0):
            layer.threshold = threshold
            errors.append(formats.sqnr(want.numpy(), layer.eval()(x).numpy()))
        assert errors[1] > max(errors[0] + 8, 45)
        small = x.clamp(-1, 1)
        plainly = QuantLinear(layer.stored).eval()(small)
        assert torch.equal(layer(small), plainly)
    y = layer(x.clone().requires_grad_())
    torch.testing.assert_close(y, want, rtol=1e-4, atol=2e-2)
    layer.exact = True
    torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("format", [INT8, NF4])
def test_columns_of_a_weight(format):
    stored = QuantWeight.of(weight(format, 8, 512), torch.float32)
    columns = torch.tensor([511, 3, 3, 70])
    assert torch.equal(stored.columns(columns, torch.bfloat16), stored.decode(torch.bfloat16)[:, columns])


def test_embedding():
    encoded = weight(NF4, 40, 512)
    dense = torch.from_numpy(formats.decode(encoded))
    layer = QuantEmbedding(QuantWeight.of(encoded, torch.bfloat16), padding_idx=0)
    ids = torch.tensor([[0, 39, 5], [5, 5, 7]], dtype=torch.int32)
    assert torch.equal(layer(ids), dense[ids.long()].bfloat16())
    layer.compute_dtype = torch.float32
    assert torch.equal(layer(ids), dense[ids.long()])
    assert layer(ids[:0]).shape == (0, 3, 512)
    assert torch.equal(layer.dequantize()(ids), dense[ids.long()].bfloat16())
    for bad in (40, -1):
        with pytest.raises(UsageError, match=f"Id {bad} is outside of the vocabulary of 40"):
            layer(torch.tensor([1, bad]))


def test_a_tied_head_shares_the_weight():
    stored = QuantWeight.of(weight(NF4, 40, 512), torch.float32)
    tied = nn.ModuleDict({"embed": QuantEmbedding(stored), "head": QuantLinear(stored)})
    twin = pickle.loads(pickle.dumps(copy.deepcopy(tied)))
    assert twin["embed"].stored is twin["head"].stored is not stored
    twin["head"].weight.data *= 2
    assert torch.equal(twin["embed"](torch.tensor([3])), 2 * tied["embed"](torch.tensor([3])))
    assert sum(p.numel() for p in tied.parameters()) == sum(p.numel() for p in stored.parameters())


def test_dequantized_layers_are_plain():
    layer, plain = build_pair(Q4_K)
    back = layer.eval().dequantize()
    assert type(back) is nn.Linear
    assert not back.training
    assert torch.equal(back.weight, plain.weight)
    assert torch.equal(back.bias, plain.bias)
    assert back.weight.requires_grad
