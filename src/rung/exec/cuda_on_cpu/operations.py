"""Operations on tensors of the host: results lie on the host; products of 16 bits; ``torch.autocast``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import dispatch_modes_waiting, exclude_key, has_kernel, include_key, pop_dispatch_mode
from rung.simulation.dispatch import dispatch_hook
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World
from rung.simulation.torch_api.streams import Graph

_include = include_key
_exclude = exclude_key
_waiting_modes = dispatch_modes_waiting
#: The dtypes of tensors that torch makes of Python's numbers.
_OF_NUMBERS = (torch.float64, torch.int64, torch.bool, torch.complex128)


class WatchingGraph(Graph):
    """``torch.cuda.CUDAGraph``: while it captures, the operations on tensors of the card are seen too, and writes."""

    fallback: Callable[..., Any]

    def capture_begin(self, *args: Any, **options: Any) -> None:
        """Notes from now on."""
        super().capture_begin(*args, **options)
        dispatch_hook.see_writes(type(self).fallback)
        _include(dispatch_hook.KEY, True)

    def capture_end(self) -> None:
        """Notes no more."""
        _include(dispatch_hook.KEY, False)
        super().capture_end()


def install(world: World) -> None:
    """Puts it in force in all threads, for the life of the process."""

    def handed_on(func: Any, *args: Any, **kwargs: Any) -> Any:
        if _waiting_modes():  # those of the program come first, and call the operation again
            with pop_dispatch_mode() as mode:
                return mode.__torch_dispatch__(func, (), args, kwargs)
        _exclude(dispatch_hook.KEY, True)
        try:
            if world.capturing is not None:
                return world.capturing.note(_run, func, args, kwargs)
            return _run(func, args, kwargs)
        finally:
            _exclude(dispatch_hook.KEY, False)

    dispatch_hook.register(handed_on, writes=False)
    WatchingGraph.fallback = staticmethod(handed_on)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    on_host = _is_on_host((*args, *kwargs.values()))
    result = func._op(*args, **kwargs)
    if on_host:
        for tensor in _tensors(result if isinstance(result, (list, tuple)) else (result,)):
            dispatch_hook.mark(tensor)
    return result


def _is_on_host(values: tuple[Any, ...]) -> bool:
    """Return whether the results of an operation with these arguments lie on the host: none of the card is among them.

    A number that Python was given comes as a tensor without dimensions.
    """
    marked = False
    for tensor in _tensors(values):
        if dispatch_hook.marks(tensor):
            marked = True
        elif tensor.dim() or tensor.dtype not in _OF_NUMBERS:
            return False
    return marked


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


_NAMES = ("mm", "bmm", "addmm", "baddbmm")
_libraries: list[torch.library.Library] = []


def install_products() -> None:
    """Puts them under the processor's key where this torch knows such products and has no kernel for them."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in _NAMES:
        overloads = getattr(torch.ops.aten, name).overloads()
        for overload, kernel in (("dtype", _wide(name)), ("dtype_out", _written(name))):
            full = f"{name}.{overload}"
            if overload in overloads and not has_kernel(f"aten::{full}", "CPU"):
                library.impl(full, kernel, "CPU")


def _wide(name: str) -> Callable[..., Tensor]:
    """The product, computed in the dtype of the result: the exact products of 16-bit numbers, added there."""
    function = getattr(torch, name)

    def product(*args: Any, **kwargs: Any) -> Tensor:
        *operands, dtype = args
        result: Tensor = function(*(operand.to(dtype) for operand in operands), **kwargs)
        return result

    return product


def _written(name: str) -> Callable[..., Tensor]:
    compute = _wide(name)

    def product(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.copy_(compute(*args, **kwargs))

    return product


_CARD, _HOST = "cuda", "cpu"


class _Own(threading.local):
    """Hold what the program has set for the processor itself in this thread."""

    def __init__(self) -> None:
        self.enabled = False
        self.dtype: torch.dtype = torch.bfloat16


class _Switches:
    """Stand in for torch's functions, and call those that were there when it was made."""

    def __init__(self) -> None:
        self._own = _Own()
        self._enable, self._is_enabled = torch.set_autocast_enabled, torch.is_autocast_enabled
        self._set_dtype, self._get_dtype = torch.set_autocast_dtype, torch.get_autocast_dtype

    def _settle(self) -> None:
        """Bring the processor's state to the card's while that is on, else to the program's own."""
        card = self._is_enabled(_CARD)
        dtype = self._get_dtype(_CARD) if card else self._own.dtype
        if dtype is not self._get_dtype(_HOST):
            torch.clear_autocast_cache()  # which holds weights in the dtype of before
            self._set_dtype(_HOST, dtype)
        self._enable(_HOST, card or self._own.enabled)

    def set_enabled(self, *args: Any) -> None:
        """Stand in for ``torch.set_autocast_enabled``."""
        if args[0] == _HOST:
            self._own.enabled = bool(args[1])
        else:  # of old a truth alone, for the card
            self._enable(*args)
        self._settle()

    def set_dtype(self, kind: str, dtype: torch.dtype) -> None:
        """Stand in for ``torch.set_autocast_dtype``."""
        if kind == _HOST:
            self._own.dtype = dtype
        else:
            self._set_dtype(kind, dtype)
        self._settle()

    def is_enabled(self, *args: Any) -> bool:
        """Stand in for ``torch.is_autocast_enabled``."""
        return self._own.enabled if args == (_HOST,) else self._is_enabled(*args)

    def get_dtype(self, kind: str) -> torch.dtype:
        """Stand in for ``torch.get_autocast_dtype``."""
        return self._own.dtype if kind == _HOST else self._get_dtype(kind)


def install_autocast(patches: Patches) -> None:
    """Put it in force."""
    switches = _Switches()
    changed: dict[str, Callable[..., Any]] = {
        "set_autocast_enabled": switches.set_enabled,
        "set_autocast_dtype": switches.set_dtype,
        "is_autocast_enabled": switches.is_enabled,
        "get_autocast_dtype": switches.get_dtype,
        "set_autocast_cpu_enabled": lambda enabled: switches.set_enabled(_HOST, enabled),
        "set_autocast_cpu_dtype": lambda dtype: switches.set_dtype(_HOST, dtype),
        "set_autocast_gpu_dtype": lambda dtype: switches.set_dtype(_CARD, dtype),
        "is_autocast_cpu_enabled": lambda: switches.is_enabled(_HOST),
        "get_autocast_cpu_dtype": lambda: switches.get_dtype(_HOST),
    }
    for name, function in changed.items():
        patches.set(torch, name, function)
