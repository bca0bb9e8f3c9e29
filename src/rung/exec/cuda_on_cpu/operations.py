"""Hold what operations on tensors of the host return lies on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import dispatch_modes_waiting, exclude_key, include_key, pop_dispatch_mode
from rung.simulation.dispatch import dispatch_hook, host_key
from rung.simulation.simulation import World
from rung.simulation.torch_api.graphs import Graph

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
        _include(host_key.KEY, True)

    def capture_end(self) -> None:
        """Notes no more."""
        _include(host_key.KEY, False)
        super().capture_end()


def install(world: World) -> None:
    """Puts it in force in all threads, for the life of the process."""

    def handed_on(func: Any, *args: Any, **kwargs: Any) -> Any:
        if _waiting_modes():  # those of the program come first, and call the operation again
            with pop_dispatch_mode() as mode:
                return mode.__torch_dispatch__(func, (), args, kwargs)
        _exclude(host_key.KEY, True)
        try:
            if world.capturing is not None:
                return world.capturing.note(_run, func, args, kwargs)
            return _run(func, args, kwargs)
        finally:
            _exclude(host_key.KEY, False)

    dispatch_hook.register(handed_on, writes=False)
    WatchingGraph.fallback = staticmethod(handed_on)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    on_host = _is_on_host((*args, *kwargs.values()))
    result = func._op(*args, **kwargs)
    if on_host:
        for tensor in _tensors(result if isinstance(result, (list, tuple)) else (result,)):
            host_key.mark(tensor)
    return result


def _is_on_host(values: tuple[Any, ...]) -> bool:
    """Return whether the results of an operation with these arguments lie on the host: none of the card is among them.

    A number that Python was given comes as a tensor without dimensions.
    """
    marked = False
    for tensor in _tensors(values):
        if host_key.marks(tensor):
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
