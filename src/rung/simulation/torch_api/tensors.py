"""Tensors on the simulated card: what one says of its device, how it moves, and new ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import (
    PARSE_TO,
    DeviceContext,
    device_constructors,
    function_mode_at,
    function_modes_waiting,
)
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import HOST, Card, Host, World
from rung.simulation.torch_api import placement
from rung.simulation.torch_api.generators import check_generator
from rung.simulation.torch_api.placement import card_of, wanting


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


def install_tensor_types(world: World, patches: Patches) -> None:
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


#: They lie where their argument lies, unless told otherwise; torch's own list has only the others.
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full", "new_tensor")
#: They take data that is there already, which may have to be copied to the card.
_WITH_DATA = ("tensor", "as_tensor", "asarray")

_DEVICE = torch.device
_in_force: Methods | None = None


def functions() -> Iterator[tuple[Any, str]]:
    """Every (module, name) that takes ``device=``: what torch counts as such, ``*_like`` and ``normal``."""
    owners = (torch, torch.fft, torch.nested)
    for function in device_constructors():
        name = str(getattr(function, "__name__", ""))
        for owner in owners:
            if getattr(owner, name, None) is function:
                yield owner, name
    for name in (*_LIKE, "normal"):
        yield torch, name


def install_factories(methods: Methods, patches: Patches) -> None:
    """Puts them in force."""
    for owner, name in functions():
        follows = name in _LIKE
        patches.set(owner, name, _placing(getattr(owner, name), follows, name in _WITH_DATA))
    for name in _NEW:
        patches.set(Tensor, name, _placing(getattr(Tensor, name), True, False))
    patches.set(torch, "device", device_class(methods.world))
    patches.set(*PARSE_TO, _parsing(methods.world, getattr(*PARSE_TO)))
    patches.set(sys.modules[__name__], "_in_force", methods)


def _placing(real: Callable[..., Any], follows: bool, with_data: bool) -> Callable[..., Any]:
    """``real`` with its result on the card when the device says so, or its argument lies there.

    Asks which simulation is in force at each call: a module that is imported meanwhile may keep the function.
    """

    @functools.wraps(real)
    def placed(*args: Any, **kwargs: Any) -> Any:
        methods = _in_force
        if methods is None or (methods.world.plain and placement.is_transparent()):
            return real(*args, **kwargs)
        device = kwargs.get("device")
        if device is None and not follows:
            device = _default_device()
        data = args[0] if args and isinstance(args[0], Tensor) else None
        target = methods.world.find(device)
        if target is None and (device is not None or (data is not None and (follows or with_data))):
            return real(*args, **kwargs)
        check_generator(methods.world, kwargs.get("generator"), target or HOST)
        kwargs["device"] = "cpu"
        pinned = kwargs.pop("pin_memory", False)
        with wanting(methods.world, target or HOST):
            result = real(*args, **kwargs)
        if not isinstance(result, Tensor):
            return result
        if not isinstance(target, Card):
            placement.put(methods.world, HOST, result)
            return methods.pinned(result) if pinned else result
        if with_data and (data is not None or hasattr(args[0], "__array__")):
            return result if card_of(methods.world, result) is target else methods.moved(result, target, {})
        placement.claim(target, result)
        return result

    return placed


def _default_device() -> torch.device | None:
    """Return the device of ``torch.set_default_device`` or of a ``with torch.device(...)`` in this thread."""
    for index in reversed(range(function_modes_waiting())):
        mode = function_mode_at(index)
        if isinstance(mode, DeviceContext):
            result: torch.device | None = mode.device
            return result
    return None


def _parsing(world: World, real: Callable[..., Any]) -> Callable[..., Any]:
    """``Module.to`` with a number: without a GPU torch does not know what it means."""

    def parsed(*args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device")
        if isinstance(device, int) and isinstance(target := world.find(device), Card):
            rest = {name: value for name, value in kwargs.items() if name != "device"}
            return real(target.torch_device, *args[1:], **rest)
        return real(*args, **kwargs)

    return parsed


def device_class(world: World) -> type:
    """Return the class that replaces ``torch.device``: it makes the same devices, and takes a bare number as the
    card's.

    Modules that are imported meanwhile keep it, so it goes on to work; it equals what it stands for, as in a table.
    """

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _DEVICE)

        def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
            if world.active and len(args) == 1 and isinstance(args[0], int):
                return _DEVICE(world.type, args[0])
            return _DEVICE(*args, **kwargs)

        def __eq__(cls, other: object) -> bool:
            return other is cls or other is _DEVICE

        def __hash__(cls) -> int:
            return hash(_DEVICE)

    return Meta("device", (), {"__doc__": _DEVICE.__doc__, "__module__": "torch"})
