"""New tensors: the functions of torch that take ``device=``."""

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
from rung.simulation.simulation import HOST, Card, World
from rung.simulation.torch_api import placement
from rung.simulation.torch_api.generators import check_generator
from rung.simulation.torch_api.placement import card_of, wanting
from rung.simulation.torch_api.tensors import Methods

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


def install(methods: Methods, patches: Patches) -> None:
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
