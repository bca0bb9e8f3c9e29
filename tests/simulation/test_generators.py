"""Generators of a simulated card, and those that are not its own."""

from __future__ import annotations

import pytest
import torch

from tests.support.devices import simulated_card

card = simulated_card("RTX 2080 Ti")


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


def test_generators_belong_to_a_device(card):
    there = torch.Generator("cuda").manual_seed(3)
    assert there.device == torch.device("cuda:0")
    assert isinstance(there, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    first = torch.randn(4, device="cuda", generator=there)
    there.manual_seed(3)
    assert torch.equal(first, torch.randn(4, device="cuda", generator=there))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randn(4, generator=there)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(4, device="cuda", generator=torch.Generator())


def test_chance_on_the_card_is_seeded_and_leaves_the_processor_alone(card):
    torch.manual_seed(5)
    first = torch.nn.functional.dropout(torch.ones(64, device="cuda"))
    host = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(host, torch.rand(2))  # nothing was drawn from the processor's generator
    torch.cuda.manual_seed_all(5)
    assert torch.equal(first, torch.nn.functional.dropout(torch.ones(64, device="cuda")))
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(3, device="cuda"))
