"""Say what a tensor says of its device, and how it moves to the simulated card and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import HOST, Card, Host, World
from rung.simulation.torch_api import placement
from rung.simulation.torch_api.legacy import CardType
from rung.simulation.torch_api.placement import card_of, wanting

_PINNED = "_rung_pinned"


class _Move(torch.autograd.Function):
    """A copy to the other side; its gradient takes the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mover: Methods, device: Card | Host, options: dict[str, Any]) -> Tensor:
        ctx.mover, ctx.torch_device, ctx.dtype = mover, placement.where(mover.world, tensor), tensor.dtype
        return mover.copied(tensor, device, options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.mover.moved(gradient, ctx.torch_device, {"dtype": ctx.dtype}), None, None, None


class Methods:
    """The attributes of ``torch.Tensor`` that know of devices, for one simulation."""

    #: Those that are plain methods.
    names: tuple[str, ...] = ("to", "cpu", "type", "numpy", "pin_memory", "is_pinned", "record_stream")

    def __init__(self, world: World) -> None:
        self.world = world
        self._torchs_to, self._type, self._numpy = Tensor.to, Tensor.type, Tensor.numpy

    def install(self, patches: Patches) -> None:
        """Puts them in force."""
        world, kind = self.world, self.world.type

        def device(tensor: Tensor) -> torch.device:
            card = card_of(world, tensor)
            return card.torch_device if card else placement.real_device(tensor)

        def get_device(tensor: Tensor) -> int:
            card = card_of(world, tensor)
            return card.index if card else -1

        patches.set(Tensor, "device", property(device))
        patches.set(Tensor, "is_cpu", property(lambda tensor: device(tensor).type == "cpu"))
        patches.set(Tensor, f"is_{kind}", property(lambda tensor: card_of(world, tensor) is not None))
        patches.set(Tensor, "get_device", get_device)
        for name in self.names:
            patches.set(Tensor, name, _method(getattr(self, name)))
        if kind in ("cuda", "xpu"):
            patches.set(Tensor, kind, _method(self.to_card))

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.to``."""
        if self.world.local.moving is tensor:
            return self._torchs_to(tensor, *args, **kwargs)
        first = args[0] if args else kwargs.get("other")
        if isinstance(first, Tensor):
            device: Any = first.device
            kwargs["dtype"] = first.dtype
            kwargs.pop("other", None)
            positional: tuple[str, ...] = ("non_blocking", "copy")
        elif isinstance(first, torch.dtype):
            return self._to(tensor, *args, **kwargs)
        else:
            device = first if args else kwargs.pop("device", None)
            positional = ("dtype", "non_blocking", "copy")
        options = dict(zip(positional, args[1:], strict=False)) | kwargs
        target = self.world.find(device)
        if target is None:
            return self._to(tensor, device, **options)
        if target is (card_of(self.world, tensor) or HOST):
            return self._to(tensor, "cpu", **options)
        return self.moved(tensor, target, options)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """torch's own ``to``.

        Under a function mode (``torch.set_default_device``) it looks the method up by name and comes back through
        ``to``, where "cpu", which only says in which memory the numbers lie, must not pass for the program's wish.
        """
        local = self.world.local
        before, local.moving = local.moving, tensor
        try:
            return self._torchs_to(tensor, *args, **kwargs)
        finally:
            local.moving = before

    def to_card(self, tensor: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
        """``Tensor.cuda``, ``Tensor.xpu``."""
        return self.to(tensor, self.world.type if device is None else device, **kwargs)

    def cpu(self, tensor: Tensor, **kwargs: Any) -> Tensor:
        """``Tensor.cpu``."""
        return self.to(tensor, "cpu", **kwargs)

    def moved(self, tensor: Tensor, target: Card | Host, options: dict[str, Any]) -> Tensor:
        """A copy in another place, with a gradient where one is wanted."""
        if tensor.requires_grad and torch.is_grad_enabled():
            result: Tensor = _Move.apply(tensor, self, target, options)
            return result
        return self.copied(tensor, target, options)

    def copied(self, tensor: Tensor, target: Card | Host, options: dict[str, Any]) -> Tensor:
        """A copy on a card or on the host."""
        with wanting(self.world, target):
            copy = self._to(tensor, "cpu", **{**options, "copy": True, "non_blocking": False})
        placement.put(self.world, target, copy)  # where no operation was seen: an empty or a wrapped tensor
        return copy

    def type(self, tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """``Tensor.type``: the name of the class of old, or a conversion."""
        prefix = f"torch.{self.world.type}."
        if dtype is None:
            name = self._type(tensor)
            return name.replace("torch.", prefix, 1) if card_of(self.world, tensor) else name
        if isinstance(dtype, str) and dtype.startswith(prefix):
            host = "torch." + dtype.removeprefix(prefix)
            return self.to(self._type(tensor, host, *args, **kwargs), self.world.type)
        if isinstance(dtype, CardType):
            return self.to(self._type(tensor, dtype.host, *args, **kwargs), self.world.type)
        return self._type(tensor, dtype, *args, **kwargs)

    def numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        """``Tensor.numpy``, which does not read the memory of a card."""
        if (card := card_of(self.world, tensor)) and not kwargs.get("force"):
            raise TypeError(
                f"can't convert {card.torch_device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
                "to host memory first."
            )
        return self._numpy(tensor, **kwargs)

    def pin_memory(self, tensor: Tensor, device: Any = None) -> Tensor:
        """``Tensor.pin_memory``: a copy that says that it is pinned."""
        if card_of(self.world, tensor):
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if self.is_pinned(tensor):
            return tensor
        return self.pinned(tensor.clone())

    def pinned(self, tensor: Tensor) -> Tensor:
        """The same tensor, saying that it is pinned."""
        tensor.untyped_storage().__dict__[_PINNED] = True
        return tensor

    def is_pinned(self, tensor: Tensor, device: Any = None) -> bool:
        """``Tensor.is_pinned``."""
        return _PINNED in tensor.untyped_storage().__dict__

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        """``Tensor.record_stream``: nothing runs later here."""


def _method(bound: Any) -> Any:
    """A plain function, so that it binds to a tensor when it stands in a class."""

    def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return bound(tensor, *args, **kwargs)

    method.__name__ = bound.__name__
    return method
