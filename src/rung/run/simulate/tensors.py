"""What a tensor says of its device, and how it moves to the simulated card and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rung.run.simulate import placement
from rung.run.simulate.patches import Patches
from rung.run.simulate.placement import wanting
from rung.run.simulate.world import World

_PINNED = "_rung_pinned"


class _Move(torch.autograd.Function):
    """A copy to the other side; its gradient takes the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mover: Methods, card: bool, options: dict[str, Any]) -> Tensor:
        ctx.mover, ctx.card, ctx.dtype = mover, not card, tensor.dtype
        return mover.copied(tensor, card, options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.mover.moved(gradient, ctx.card, {"dtype": ctx.dtype}), None, None, None


class Methods:
    """The attributes of ``torch.Tensor`` that know of devices, for one simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._to, self._type, self._numpy = Tensor.to, Tensor.type, Tensor.numpy

    def install(self, patches: Patches) -> None:
        """Puts them in force."""
        world, kind = self.world, self.world.type
        on_card = placement.on_card

        def device(tensor: Tensor) -> torch.device:
            real = placement.real_device(tensor)
            return world.place if real.type == "cpu" and on_card(world, tensor) else real

        patches.set(Tensor, "device", property(device))
        patches.set(Tensor, "is_cpu", property(lambda tensor: device(tensor).type == "cpu"))
        patches.set(Tensor, f"is_{kind}", property(lambda tensor: device(tensor).type == kind))
        patches.set(Tensor, "get_device", lambda tensor: 0 if on_card(world, tensor) else -1)
        for name in ("to", "cpu", "type", "numpy", "pin_memory", "is_pinned", "record_stream"):
            patches.set(Tensor, name, _method(getattr(self, name)))
        if kind in ("cuda", "xpu"):
            patches.set(Tensor, kind, _method(self.to_card))

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``Tensor.to``."""
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
        card = self.world.names_card(device)
        if card is None:
            return self._to(tensor, device, **options)
        if card is placement.on_card(self.world, tensor):
            return self._to(tensor, "cpu", **options)
        return self.moved(tensor, card, options)

    def to_card(self, tensor: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
        """``Tensor.cuda``, ``Tensor.xpu``."""
        return self.to(tensor, self.world.place if device is None else device, **kwargs)

    def cpu(self, tensor: Tensor, **kwargs: Any) -> Tensor:
        """``Tensor.cpu``."""
        return self.to(tensor, "cpu", **kwargs)

    def moved(self, tensor: Tensor, card: bool, options: dict[str, Any]) -> Tensor:
        """A copy on the other side, with a gradient where one is wanted."""
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Move.apply(tensor, self, card, options)
        return self.copied(tensor, card, options)

    def copied(self, tensor: Tensor, card: bool, options: dict[str, Any]) -> Tensor:
        """A copy on the card or on the host."""
        with wanting(self.world, card):
            made = self._to(tensor, "cpu", **{**options, "copy": True, "non_blocking": False})
        if card:
            placement.claim(self.world, made)  # where no operation was seen: an empty or a wrapped tensor
        return made

    def type(self, tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """``Tensor.type``: the name of the class of old, or a conversion."""
        prefix = f"torch.{self.world.type}."
        if dtype is None:
            name = self._type(tensor)
            return name.replace("torch.", prefix, 1) if placement.on_card(self.world, tensor) else name
        if isinstance(dtype, str) and dtype.startswith(prefix):
            host = "torch." + dtype.removeprefix(prefix)
            return self.to(self._type(tensor, host, *args, **kwargs), self.world.place)
        return self._type(tensor, dtype, *args, **kwargs)

    def numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        """``Tensor.numpy``, which does not read the memory of a card."""
        if placement.on_card(self.world, tensor):
            raise TypeError(
                f"can't convert {self.world.place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                "host memory first."
            )
        return self._numpy(tensor, **kwargs)

    def pin_memory(self, tensor: Tensor, device: Any = None) -> Tensor:
        """``Tensor.pin_memory``: a copy that says that it is pinned."""
        if placement.on_card(self.world, tensor):
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
