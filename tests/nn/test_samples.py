"""Layers that are rounded for samples, beside plain ones."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import rung
from rung.core.errors import CannotEncode


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).eval()


def inputs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(32, 128, generator=torch.Generator().manual_seed(9))
    return torch.randn(count, 32, generator=generator) @ mixed + 0.3 * torch.randn(count, 128, generator=generator)


def error(layers, x, exact):
    """Return how far decoded weights are from exact ones, with activations as they are."""
    plain = nn.Sequential(*(each.dequantize() if hasattr(each, "dequantize") else each for each in layers))
    with torch.no_grad():
        return float((plain(x) - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ["nf4", "nf4:128:nested", "fp4", "int8", "q4_0"])
def test_errors_cancel_on_other_inputs_of_the_same_kind(name):
    x = inputs(500, 1)
    with torch.no_grad():
        exact = network()(x)
    ours = error(rung.quantize(network(), name, samples=[inputs(2000, 2)]), x, exact)
    assert ours < 0.75 * error(rung.quantize(network(), name), x, exact)


def test_arguments_of_every_kind_and_layers_that_are_not_reached():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x, scale=1.0):
            return self.used(x) * scale

    torch.manual_seed(3)
    model, x = Both(), torch.randn(300, 64) @ torch.randn(64, 64)
    idle = model.idle.weight.detach().clone()
    found = [rung.quantize(_copy(model), "nf4", samples=[each]) for each in (x, (x, 2.0), {"x": x, "scale": 2.0})]
    for other in found[1:]:
        assert torch.equal(found[0].used.weight.data, other.used.weight.data)
    plain = nn.Linear(64, 64)
    plain.weight.data = idle
    assert torch.equal(found[0].idle.weight.data, rung.quantize(plain, "nf4").weight.data)


def test_a_model_that_trains_is_not_changed_by_samples():
    """Averages stay as they are, nothing is dropped, and the mode is the one of before."""
    torch.manual_seed(4)
    model, x = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(0.9), nn.Linear(64, 64)), torch.randn(200, 64) + 3
    averages = model[0].running_mean.clone()
    judged = rung.quantize(deepcopy(model).eval(), "nf4", samples=[x])
    found = rung.quantize(model, "nf4", samples=[x])
    assert found.training
    assert found[1].training
    assert torch.equal(found[0].running_mean, averages)
    assert torch.equal(found[2].weight.data, judged[2].weight.data)


def test_inputs_by_name_and_none_at_all():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x):
            return self.inner(input=x)

    torch.manual_seed(5)
    model, x = Named(), torch.randn(300, 64) @ torch.randn(64, 64)
    by_name = rung.quantize(deepcopy(model), "nf4", samples=[x]).inner.weight.data
    assert torch.equal(by_name, rung.quantize(nn.Sequential(deepcopy(model.inner)), "nf4", samples=[x])[0].weight.data)
    unmet = rung.quantize(deepcopy(model), "nf4", samples=[x[:0]]).inner.weight.data
    assert torch.equal(unmet, rung.quantize(deepcopy(model), "nf4").inner.weight.data)


def _copy(model):
    copied = type(model)()
    copied.load_state_dict(model.state_dict())
    return copied


def test_samples_that_are_no_numbers_are_refused_and_change_nothing():
    model, x = network(), inputs(10, 4)
    x[3, 5] = torch.inf
    with pytest.raises(CannotEncode, match="What 0 meets of the samples"):
        rung.quantize(model, "nf4", samples=[x])
    assert isinstance(model[0], nn.Linear)
    assert not model[0]._forward_pre_hooks
