"""Arguments and inputs that a quantized layer cannot take, and ones without values: said in words, or computed."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import rung
from rung.core.errors import UnknownFormat, UsageError
from rung.nn import QuantEmbedding, QuantLinear
from tests.tiny import tiny_model


def layer(**options):
    torch.manual_seed(0)
    return rung.quantize(nn.Linear(64, 96), "q8_0", **options)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((nn.Linear(64, 4), None), UnknownFormat, "named by a string"),
        ((nn.Linear(64, 4), torch.int8), UnknownFormat, "not by torch.int8"),
        (("model", "q8_0"), UsageError, r"takes a torch.nn.Module, not str[\s\S]*rung quantize SRC DST"),
        ((nn.Linear, "q8_0"), UsageError, "not type"),
        ((nn.Linear(4, 4), "q8_0"), UsageError, r"do not divide rows of 4[\s\S]*leave this layer as it is"),
    ],
)
def test_what_is_no_model_or_format(arguments, error, said):
    with pytest.raises(error, match=said):
        rung.quantize(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"threshold": "6"}, "threshold is '6'"), ({"keep": ["lm_head"]}, "keep has a format for each")],
)
def test_what_is_no_option(options, said):
    for call in (layer, lambda **keywords: rung.QuantizationConfig("q8_0", **keywords)):
        with pytest.raises(UsageError, match=said):
            call(**options)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("options", [{}, {"compute_dtype": torch.float32}])
def test_inputs_that_are_no_floats_are_refused_and_not_cut(dtype, options):
    with pytest.raises(UsageError, match="multiplies floating-point numbers"):
        layer(**options)(torch.ones(2, 64).to(dtype))


def test_the_weight_cannot_become_another():
    model = rung.quantize(nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 96)), "q8_0", embeddings="q8_0")
    assert isinstance(model[0], QuantEmbedding)
    assert isinstance(model[1], QuantLinear)
    for quantized in model:
        with pytest.raises(UsageError, match=r"stored in q8_0[\s\S]*layer\.weight\.data = values"):
            quantized.weight = nn.Parameter(torch.zeros(9, 64))
        before = quantized.weight.data
        quantized.weight = quantized.weight  # handed back, as PEFT does
        assert torch.equal(quantized.weight.data, before)


def test_inputs_without_values():
    """As traces and estimates of memory send them through a model."""
    module = layer(threshold=1.0).eval().to("meta")
    assert module(torch.ones(2, 64, device="meta")).shape == (2, 96)
    for training in (True, False):
        module = layer().train(training)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert module(mode.from_tensor(torch.ones(2, 64))).shape == (2, 96)
    model = rung.quantize(tiny_model("llama"), "q8_0", embeddings="q8_0").to("meta")
    assert model(torch.zeros(1, 4, dtype=torch.long, device="meta")).logits.shape[:2] == (1, 4)


def test_a_trace_counts_what_a_plain_layer_does():
    plain, ids = tiny_model("llama"), torch.zeros(1, 4, dtype=torch.long)
    expected = rung.trace(plain, ids)
    found = rung.trace(rung.quantize(plain, "q8_0", embeddings="q8_0"), ids)
    assert found.flops == expected.flops > 0
    assert found.weight_bytes < expected.weight_bytes / 3
