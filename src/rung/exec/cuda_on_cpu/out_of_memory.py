"""A full memory is what it is on a card: ``torch.cuda.OutOfMemoryError``, for which programs have handlers.

The processor's allocator raises ``RuntimeError``, and Linux grants more than there is and kills later. So large tensors
are refused before, and the allocator's errors are turned where they come out: in the functions that make or move
tensors, in modules, in the backward pass and in optimizers. Other operations raise what torch raises.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from rung.core.text import size
from rung.exec.cuda_on_cpu import memory
from rung.simulation.dispatch.patches import Patches

#: How the allocator says it, with the bytes that were asked for.
_REFUSED = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d+) bytes")
#: Tensors from this size on are compared with what is free: less is not worth the question.
_LARGE = 64 << 20
_SIZED = ("empty", "zeros", "ones", "full", "rand", "randn")


def install(makers: Iterable[tuple[Any, str]], patches: Patches) -> None:
    """Puts it in force; ``makers`` are the (module, name) of the functions that make tensors."""
    for owner, name in makers:
        turned = _turned(getattr(owner, name))
        patches.set(owner, name, _sized(turned) if owner is torch and name in _SIZED else turned)
    for owner, names in (
        (torch.Tensor, ("to", "cuda", "type", "float", "double", "clone", "contiguous", "backward")),
        (torch.nn.Module, ("__call__", "_apply")),
        (torch.autograd, ("backward", "grad")),
    ):
        for name in names:
            patches.set(owner, name, _turned(getattr(owner, name)))
    patches.set(torch.optim.Optimizer, "profile_hook_step", staticmethod(_of_step(torch.optim.Optimizer)))


def refused(requested: int) -> torch.OutOfMemoryError:
    """The error of a card that has no room for so many bytes."""
    free = memory.available() or 0
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {size(requested)}. GPU 0 is this processor: {size(free)} of its "
        "memory is free."
    )


def _turned(real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, whose errors of the allocator are those of a card."""

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return real(*args, **kwargs)
        except RuntimeError as error:
            if type(error) is RuntimeError and (found := _REFUSED.search(str(error))):
                raise refused(int(found[1])) from error
            raise

    return call


def _sized(real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, which makes no tensor larger than what is free."""

    @functools.wraps(real)
    def make(*args: Any, **kwargs: Any) -> Any:
        size = _bytes(args, kwargs)
        if size >= _LARGE and (free := memory.available()) is not None and size > free + memory.swap():
            raise refused(size)
        return real(*args, **kwargs)

    return make


def _bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many bytes a tensor of these arguments takes; 0 where they say no size."""
    shape = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list)) else args)
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not all(isinstance(length, int) for length in shape) or getattr(kwargs.get("device"), "type", "") == "meta":
        return 0
    return 0 if kwargs.get("device") == "meta" else math.prod(shape) * int(dtype.itemsize)


def _of_step(optimizer: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return a wrapper for the ``step`` of each optimizer."""
    wrap = optimizer.profile_hook_step

    def wrapped(step: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = wrap(_turned(step))
        return found

    return wrapped
