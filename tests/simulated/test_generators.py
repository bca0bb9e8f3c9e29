"""Generators of a simulated card, and those that are not its own."""

from __future__ import annotations

import pytest
import torch

import rung


@pytest.fixture
def card():
    with rung.simulate("RTX 2080 Ti") as device:
        yield device


def test_generators_of_elsewhere_are_refused_in_place_too(card):
    on_card = torch.Generator("cuda").manual_seed(3)
    same = on_card.clone_state()
    drawn = torch.empty(3, device="cuda").normal_(generator=on_card)
    assert torch.equal(drawn, torch.empty(3, device="cuda").normal_(generator=same))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.empty(3, device="cuda").normal_(generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.empty(3).normal_(generator=on_card)


def test_the_card_s_own_generator(card):
    (own,) = torch.cuda.default_generators
    torch.manual_seed(5)
    drawn = torch.rand(3, device="cuda")
    own.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3, device="cuda", generator=own))
    assert own.device == torch.device("cuda:0")
