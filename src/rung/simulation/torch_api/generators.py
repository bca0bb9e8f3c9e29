"""Chance on the simulated card: its own random state, and generators that say where they are."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from rung.simulation.simulation import Card, Host, World

_REAL = torch.Generator


def generator_class(world: World) -> type:
    """Return the class that replaces ``torch.Generator``: it makes those of the card too; all others are instances."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _REAL)

        def __call__(cls, device: Any = None) -> torch.Generator:
            card = world.find(device) if world.active else None
            return CardGenerator(card) if isinstance(card, Card) else _REAL(device or "cpu")

    return Meta("Generator", (), {"__doc__": _REAL.__doc__})


class CardGenerator(_REAL):
    """A generator on the simulated card."""

    card: Card

    def __new__(cls, card: Card) -> CardGenerator:
        generator = super().__new__(cls)
        generator.card = card
        _on_cards[generator._cdata] = generator  # type: ignore[attr-defined]
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The card."""
        return self.card.torch_device

    def clone_state(self) -> CardGenerator:
        """Another one on the card, in the same state."""
        clone = CardGenerator(self.card)
        clone.set_state(self.get_state())
        return clone


#: By torch's own address of each: what comes back from an operation is a plain one of the same address.
_on_cards: weakref.WeakValueDictionary[int, CardGenerator] = weakref.WeakValueDictionary()


def check_generator(world: World, generator: Any, device: Card | Host) -> None:
    """Raises torch's error for a generator of another kind of device."""
    if generator is None:
        return
    found = world.type if generator._cdata in _on_cards else "cpu"
    if found != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator but found '{found}'")
