"""``torch.save`` and ``torch.load``: storages of the card say so in the file, and come back to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rung.run.torch_private import package_registry
from rung.simulation.simulation import Card, World
from rung.simulation.torch_api.placement import card_of_storage, claim_storage

#: Asked before torch's own kinds of devices, which begin at 10.
_PRIORITY = 5


def install(world: World) -> Callable[[], None]:
    """Puts it in force; returns what takes it out again."""

    def tag(storage: Any) -> str | None:
        card = card_of_storage(world, _untyped(storage))
        return str(card.torch_device) if card else None

    def restore(storage: Any, location: str) -> Any:
        kind, _, index = location.partition(":")
        if kind != world.type or int(index or 0) >= len(world.cards):  # torch has words for a card that is not there
            return None
        card = world.find(location)
        assert isinstance(card, Card)
        claim_storage(card, _untyped(storage))
        return storage

    torch.serialization.register_package(_PRIORITY, tag, restore)

    def remove() -> None:
        registry = package_registry
        registry[:] = [entry for entry in registry if entry[2] is not restore]

    return remove


def _untyped(storage: Any) -> torch.UntypedStorage:
    return storage._untyped_storage if isinstance(storage, torch.storage.TypedStorage) else storage
