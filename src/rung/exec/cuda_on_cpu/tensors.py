"""Tensors that torch makes without being told a device, and storages, where the processor is the card."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import new_tensor, restore_location
from rung.simulation.dispatch import dispatch_hook
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import HOST, World
from rung.simulation.torch_api import placement
from rung.simulation.torch_api.placement import Mark, card_of
from rung.simulation.torch_api.tensors import Methods

#: They take memory that is there already.
_FROM_MEMORY = ("from_numpy", "frombuffer", "from_file")
#: Methods that take the dispatch keys of their tensor for a type, and do not know the bit.
_BY_TYPE = ("new", "new_tensor")


class Moves(Methods):
    """The attributes of ``torch.Tensor`` that know of devices. The card's memory can be read: it is the processor's."""

    names = ("to", "cpu", "type", "pin_memory", "is_pinned", "record_stream")

    def type(self, tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """``Tensor.type``: the name of the class of old, or a conversion."""
        if dtype is None:
            with dispatch_hook.unmarked(tensor):
                name = self._type(tensor)
            return name.replace("torch.", "torch.cuda.", 1) if card_of(self.world, tensor) else name
        kind = dtype.host if isinstance(dtype, HostType) else dtype
        converted = super().type(tensor, kind, *args, **kwargs)
        return self.to(converted, "cpu") if isinstance(dtype, HostType) else converted


class HostType(type):
    """The class of ``torch.FloatTensor`` and its like: ``host`` is torch's own."""

    host: Any
    world: World

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype is cls.host.dtype and card_of(cls.world, value) is None

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        tensor: Tensor = cls.host(*args, **kwargs)
        placement.put(cls.world, HOST, tensor)
        return tensor

    @property
    def dtype(cls) -> torch.dtype:
        """The dtype of its numbers."""
        found: torch.dtype = cls.host.dtype
        return found


def install(world: World, patches: Patches) -> None:
    """Puts it in force."""
    for name in _FROM_MEMORY:
        patches.set(torch, name, _on_host(world, getattr(torch, name)))
    patches.set(torch, "from_dlpack", _taken(world, torch.from_dlpack))
    patches.set(torch.utils.dlpack, "from_dlpack", torch.from_dlpack)
    for name in _BY_TYPE:
        patches.set(Tensor, name, _by_type(world, getattr(Tensor, name)))
    _install_types(world, patches)
    _install_storages(world, patches)


def _on_host(world: World, real: Callable[..., Any]) -> Callable[..., Any]:
    def moved(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        placement.put(world, HOST, result)
        return result

    return moved


def _taken(world: World, real: Callable[..., Any]) -> Callable[..., Any]:
    """DLPack: memory of a tensor of the card stays the card's, all other is the host's."""

    def taken(value: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(value, *args, **kwargs)
        if not (isinstance(value, Tensor) and card_of(world, value)):
            placement.put(world, HOST, result)
        return result

    return taken


def _by_type(world: World, real: Callable[..., Any]) -> Callable[..., Any]:
    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        target = world.find(kwargs.pop("device", None)) or card_of(world, tensor) or HOST
        with dispatch_hook.unmarked(tensor):
            result = real(tensor, *args, **kwargs)
        placement.put(world, target, result)
        return result

    return moved


def _install_types(world: World, patches: Patches) -> None:
    """The constructors of old: ``torch.Tensor(2, 3)``, ``torch.FloatTensor([1])``."""
    make = new_tensor

    @functools.wraps(Tensor.__new__)  # by which the compiler knows it
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = make(cls, *args, **kwargs)
        placement.put(world, HOST, tensor)
        return tensor

    patches.set(Tensor, "__new__", new)
    kinds = [name for name in dir(torch) if isinstance(getattr(torch, name), type(torch.FloatTensor))]
    for name in kinds:
        host = getattr(torch, name)
        patches.set(torch, name, HostType(name, (), {"host": host, "world": world, "__module__": "torch"}))
    before: Callable[[Any], None] = torch.set_default_tensor_type
    patches.set(torch, "set_default_tensor_type", lambda kind: before(getattr(kind, "host", kind)))


def _install_storages(world: World, patches: Patches) -> None:
    """The storage of a tensor of the card says so; others lie on the host until a file says otherwise."""
    real, restoring = Tensor.untyped_storage, restore_location
    card = world.cards[0]
    mark = Mark(card, card.allocate(0))

    def untyped_storage(tensor: Tensor) -> Any:
        storage: Any = real(tensor)
        if storage._rung_mark is None and card_of(world, tensor):
            storage._rung_mark = mark
        return storage

    def get_restore_location(map_location: Any) -> Any:
        restore = restoring(map_location)

        def restored(storage: Any, location: str) -> Any:
            untyped = getattr(storage, "_untyped_storage", storage)
            untyped._rung_mark = None
            return restore(storage, location)

        return restored

    patches.set(Tensor, "untyped_storage", untyped_storage)
    patches.set(torch.serialization, "_get_restore_location", get_restore_location)
