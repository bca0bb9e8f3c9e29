"""Storages say where they lie, are copied there and come back from files; DLPack hands memory on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import package_registry, storage_device
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import Card, World
from rung.simulation.torch_api.placement import Mark, card_of_storage, claim_storage, mark_of, share

_real_device = storage_device
_PRESERVE = -1  # the stream that torch's own ``__dlpack__`` takes for "none was named"


def install(world: World, patches: Patches) -> None:
    """Puts it in force."""
    owner = torch.UntypedStorage
    real_to = owner.to

    def device(storage: torch.UntypedStorage) -> torch.device:
        card = card_of_storage(world, storage)
        return card.torch_device if card else _real_device(storage)

    def copied(storage: torch.UntypedStorage, card: Card | None) -> torch.UntypedStorage:
        copy = torch.UntypedStorage(storage.nbytes())
        copy.copy_(storage)
        if card is not None:
            claim_storage(card, copy)
        return copy

    def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return copied(storage, card_of_storage(world, storage))

    def to(storage: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        target, here = world.find(device), card_of_storage(world, storage)
        if target is None:
            return real_to(storage, device=device, non_blocking=non_blocking)
        card = target if isinstance(target, Card) else None
        return storage if card is here else copied(storage, card)

    patches.set(owner, "device", property(device))
    patches.set(owner, "clone", clone)
    patches.set(owner, "to", to)
    _exchange(world, patches)


def _exchange(world: World, patches: Patches) -> None:
    """DLPack: who takes a card's memory is on that card; who names no stream does not know of cards."""
    marks: weakref.WeakValueDictionary[int, Mark] = weakref.WeakValueDictionary()
    real = Tensor.__dlpack__

    def remembered(tensor: Tensor) -> None:
        mark = mark_of(world, tensor)
        if mark is not None:
            marks[tensor.data_ptr()] = mark

    def exported(tensor: Tensor, *, stream: Any = _PRESERVE, **options: Any) -> Any:
        remembered(tensor)
        if stream == _PRESERVE and mark_of(world, tensor) is not None:  # as NumPy asks, and then refuses what it gets
            raise BufferError("Unsupported device in DLTensor.")
        return real(tensor, stream=stream, **options)

    def capsule(to_capsule: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def exporting(tensor: Tensor) -> Any:
            remembered(tensor)
            return to_capsule(tensor)

        return exporting

    def taking(take: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def taken(*args: Any, **kwargs: Any) -> Tensor:
            result = take(*args, **kwargs)
            mark = marks.get(result.data_ptr())
            if mark is not None:
                share(mark, result)
            return result

        return taken

    patches.set(Tensor, "__dlpack__", exported)
    for module in (torch, torch.utils.dlpack):
        patches.set(module, "to_dlpack", capsule(module.to_dlpack))
        patches.set(module, "from_dlpack", taking(module.from_dlpack))


#: Asked before torch's own kinds of devices, which begin at 10.
_PRIORITY = 5


def install_serialization(world: World) -> Callable[[], None]:
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
