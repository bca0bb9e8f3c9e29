"""Test what torch does with functions and parameters: transforms, traces, other parts in a call, parts exchanged."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.nn.utils import parametrize

from rung import formats
from rung.nn import QuantEmbedding, QuantLinear, QuantWeight
from tests.ops.conformance import weight

X = torch.linspace(-1, 1, 3 * 128).view(3, 128)
#: From a layer to what a transform makes of it at X.
TRANSFORMS = {
    "grad": lambda layer: grad(lambda x: layer(x).square().sum())(X),
    "vmap": lambda layer: vmap(layer)(X),
    "a gradient for each row": lambda layer: vmap(grad(lambda x: layer(x).square().sum()))(X),
    "jvp": lambda layer: jvp(layer, (X,), (2 * X,))[1],
    "jacrev": lambda layer: jacrev(layer)(X[0]),
    "hessian": lambda layer: hessian(lambda x: layer(x).pow(3).sum())(X[0]),
    "forward mode": lambda layer: forward(layer),
}


def forward(layer):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(layer(forward_ad.make_dual(X, 2 * X))).tangent


def stored_weight(name, seed=0, rows=48, columns=128):
    return QuantWeight.of(weight(formats.get(name), rows, columns, seed), torch.float32)


def layer(name="nf4", seed=0):
    return QuantLinear(stored_weight(name, seed), torch.linspace(0, 1, 48)).requires_grad_(False).eval()


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("training", [False, True])
def test_a_transformed_layer_is_a_plain_one_with_the_decoded_weight(name, training):
    module = layer().train(training)
    torch.testing.assert_close(TRANSFORMS[name](module), TRANSFORMS[name](module.dequantize()))


def test_gradients_of_each_row_behind_an_embedding():
    table, head = QuantEmbedding(stored_weight("q8_0", rows=9)), layer()
    plain = [table.dequantize(), head.dequantize()]
    ids, between = torch.tensor([[1, 8], [0, 3]]), torch.eye(128)

    def loss(between, ids, first, second):
        return second(first(ids) @ between).square().sum()

    found = vmap(grad(loss), (None, 0, None, None))(between, ids, table, head)
    torch.testing.assert_close(found, vmap(grad(loss), (None, 0, None, None))(between, ids, *plain))


@pytest.mark.parametrize("training", [False, True])
def test_a_trace_computes(training):
    module = layer().train(training)
    traced = torch.jit.trace(module, X)
    with torch.no_grad():
        for x in (X, -X[:1]):
            assert torch.equal(traced(x), module(x))


def test_a_call_with_other_parts_leaves_nothing_behind():
    module, other = layer(), layer(seed=1)
    with torch.no_grad():
        before = module(X[:1])
        for _ in range(2):
            assert torch.equal(functional_call(module, dict(other.named_parameters()), (X[:1],)), other(X[:1]))
            assert torch.equal(module(X[:1]), before)


def test_a_part_that_is_computed():
    class Twice(nn.Module):
        def forward(self, scale):
            return 2 * scale

    module = layer()
    plain = module.dequantize()
    with torch.no_grad():
        module(X[:1])
        parametrize.register_parametrization(module.stored, "absmax", Twice())
        torch.testing.assert_close(module.train()(X) - plain.bias, 2 * (plain(X) - plain.bias))


def exchanged(module, other):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.load_state_dict(other.state_dict())
        module(X[:1])
        module.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def pointed(module, other):
    for part, new in zip(module.parameters(), other.parameters(), strict=True):
        part.data = new.data.clone()


@pytest.mark.parametrize(
    "change",
    [exchanged, pointed, lambda module, other: module.load_state_dict(other.state_dict(), assign=True)],
    ids=["exchanged", "pointed elsewhere", "assigned"],
)
def test_parts_that_become_others_are_noticed(change):
    module, other = layer(), layer(seed=1)
    with torch.no_grad():
        module(X[:1])
        change(module, other)
        assert torch.equal(module(X[:1]), other(X[:1]))


def test_a_state_dictionary_is_noticed_where_tensors_count_no_changes():
    with torch.inference_mode():
        module, other = copy.deepcopy(layer()), layer(seed=1)
        assert module.stored.codes.is_inference()
        module(X[:1])
        module.load_state_dict(other.state_dict())
        assert torch.equal(module(X[:1]), other(X[:1]))
