"""``torch.save`` and ``torch.load``: storages of the card say so in the file, and come back to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rung.run.simulate.placement import claim_storage, storage_on_card
from rung.run.simulate.world import World

#: Asked before torch's own kinds of devices, which begin at 10.
_PRIORITY = 5


def install(world: World) -> Callable[[], None]:
    """Puts it in force; returns what takes it out again."""

    def tag(storage: Any) -> str | None:
        return str(world.place) if storage_on_card(world, _untyped(storage)) else None

    def restore(storage: Any, location: str) -> Any:
        if location.split(":")[0] != world.type or not world.names_card(location):
            return None
        claim_storage(world, _untyped(storage))
        return storage

    torch.serialization.register_package(_PRIORITY, tag, restore)

    def remove() -> None:
        registry = torch.serialization._package_registry
        registry[:] = [entry for entry in registry if entry[2] is not restore]

    return remove


def _untyped(storage: Any) -> torch.UntypedStorage:
    return storage._untyped_storage if isinstance(storage, torch.storage.TypedStorage) else storage
