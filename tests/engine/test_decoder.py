"""The decoder against transformers: the eight architectures, rope scalings, chunks, and one token after the other."""

import pytest
import torch
from tiny_decoders import KINDS, PlainParts, checkpoint, roles, shape

from rung.engine.decoder import Decoder
from rung.ops.attention.torch_sdpa import RUNG as SDPA
from rung.ops.decode_step.network import Network


def kl(expected, found):
    """The mean divergence over positions, in nats, computed in f64."""
    p, q = (torch.log_softmax(x.double(), -1) for x in (expected, found))
    return (p.exp() * (p - q)).sum(-1).mean().item()


IDS = torch.randint(0, 128, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def expected(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(kind):
    model = checkpoint(kind)
    decoder = Decoder(Network(shape(model), PlainParts(roles(model), SDPA.apply), 64), 64, "f32")
    found = decoder.logits(IDS)
    wanted = expected(model, IDS)
    assert wanted.std() > 0.1
    assert kl(wanted, found) < 1e-9
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
