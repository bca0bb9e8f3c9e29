"""The operators under ``torch.compile``: whole graphs, the same values, packed once."""

import gc

import pytest
import torch

from rung import formats
from rung.nn import QuantEmbedding, QuantLinear, QuantWeight
from rung.nn.quantized import binding
from rung.nn.quantized.matmul import infer, product, rows_of
from tests.ops.conformance import weight


def layer(name="nf4", rows=48, columns=512):
    return QuantLinear(QuantWeight.of(weight(formats.get(name), rows, columns), torch.float32), torch.ones(rows))


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, backend="aot_eager", fullgraph=True)


def test_inference():
    gc.collect()  # the states of other tests would go meanwhile
    module, x = layer().eval(), torch.randn(3, 512)
    with torch.no_grad():
        want, kept = module(x), len(binding.states)
        fast = compiled(module)
        for _ in range(2):
            assert torch.equal(fast(x), want)
        assert len(binding.states) == kept


def test_training():
    module, gradients = layer().train(), []
    for each in (module, compiled(module)):
        x = torch.ones(3, 512, requires_grad=True)
        each(x).square().sum().backward()
        gradients.append((x.grad, module.bias.grad))
        module.bias.grad = None
    torch.testing.assert_close(*gradients)


def test_embedding():
    module = QuantEmbedding(QuantWeight.of(weight(formats.get("q8_0"), 9, 512), torch.float32))
    ids = torch.tensor([[1, 8], [0, 8]])
    assert torch.equal(compiled(module)(ids), module(ids))


@pytest.mark.parametrize("transposed", [False, True])
def test_operators_are_what_they_say(transposed):
    stored = layer().stored
    parts, shape = [part.detach() for part in stored.parts().values()], (stored.format.name, *stored.shape)
    x = torch.randn(3, 48 if transposed else 512, requires_grad=True)
    torch.library.opcheck(product, (x, parts, *shape, transposed))
    torch.library.opcheck(infer, (torch.randn(3, 512), parts, *shape))
    torch.library.opcheck(rows_of, (torch.tensor([1, 5]), parts, *shape))
