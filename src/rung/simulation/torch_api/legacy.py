"""The tensor types of old on a simulated card: ``torch.cuda.FloatTensor`` and its like, as types and as functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World
from rung.simulation.torch_api.placement import card_of


class CardType(type):
    """The class of such a type: ``host`` is the type of the same numbers on the host."""

    host: Any
    world: World

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype is cls.host.dtype and card_of(cls.world, value) is not None

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        kwargs.pop("device", None)
        result: Tensor = cls.host(*args, **kwargs).to(cls.world.type)
        return result

    @property
    def dtype(cls) -> torch.dtype:
        """The dtype of its numbers."""
        found: torch.dtype = cls.host.dtype
        return found


def install(world: World, patches: Patches) -> None:
    """Puts the types in force, and the function that makes one of them the default."""
    module = getattr(torch, world.type)
    for name in dir(module):
        host = getattr(torch, name, None)
        if name.endswith("Tensor") and isinstance(host, type(torch.FloatTensor)):
            card_type = CardType(name, (), {"host": host, "world": world, "__module__": f"torch.{world.type}"})
            patches.set(module, name, card_type)
    before = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        named = getattr(module, str(kind).rpartition(".")[2], None) if isinstance(kind, str) else kind
        if isinstance(named, CardType) and (not isinstance(kind, str) or f".{world.type}." in kind):
            torch.set_default_dtype(named.dtype)
            torch.set_default_device(world.type)
        else:
            before(kind)

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
