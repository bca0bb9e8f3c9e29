"""Chance on the simulated card: its own random state, and generators that say where they are."""

from __future__ import annotations

from typing import Any

import torch

from rung.run.simulate.world import World

_REAL = torch.Generator


def generator_class(world: World) -> type:
    """What stands in for ``torch.Generator``: it makes those of the card too; all others are instances."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _REAL)

        def __call__(cls, device: Any = None) -> torch.Generator:
            return CardGenerator(world) if world.names_card(device) else _REAL(device or "cpu")

    return Meta("Generator", (), {"__doc__": _REAL.__doc__})


class CardGenerator(_REAL):
    """A generator on the simulated card."""

    world: World

    def __new__(cls, world: World) -> CardGenerator:
        made = super().__new__(cls)
        made.world = world
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The card."""
        return self.world.place


def check_generator(world: World, generator: Any, card: bool) -> None:
    """Raises torch's error for a generator of the other device."""
    if generator is None:
        return
    there = isinstance(generator, CardGenerator)
    if there is not card:
        wanted, found = (world.type, "cpu") if card else ("cpu", world.type)
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
