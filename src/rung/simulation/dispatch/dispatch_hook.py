"""How a simulation sees the operations of torch: as the fallback of a dispatch key that torch itself leaves empty.

A ``TorchDispatchMode`` would see them too, but with them all views, half of what a model calls, which concern no memory
and no device; and while a mode is in force autograd adds gradients in new memory, which it does not on a card. The key
``Fake`` comes after autograd and before ``Python``, the key of modes and of tensors with operations of their own.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.core.errors import SoftwareMissing
from rung.run.torch_private import (
    DispatchKey,
    DispatchKeySet,
    TorchDispatchMode,
    all_operators,
    dispatch_keys,
    dispatch_modes_waiting,
    get_schema,
    include_key,
    is_key_included,
    operators_with_kernel,
    parse_dispatch_key,
    pop_dispatch_mode,
)

KEY: Any = parse_dispatch_key("Fake")
_BIT: int = DispatchKeySet(KEY).raw_repr()
_keys_of = dispatch_keys
#: What tensors of all layouts in the processor's memory have in common. Their ``device`` may be replaced, and modes too
#: would be asked for it.
_PROCESSOR: int = DispatchKeySet(DispatchKey.CPU).raw_repr() & DispatchKeySet(DispatchKey.SparseCPU).raw_repr()
#: Bytes of a tensor of torch that are searched; it takes about 200.
_SEARCHED = 256


def marks(tensor: Tensor) -> bool:
    """Return whether the tensor bears the bit."""
    return bool(_keys_of(tensor).has(KEY))


def on_card(tensor: Tensor) -> bool:
    """Return whether the tensor is the card's: in the processor's memory, without the bit."""
    return bool(_keys_of(tensor).raw_repr() & (_PROCESSOR | _BIT) == _PROCESSOR)


def mark(tensor: Tensor) -> None:
    """Sets the bit, but in a tensor of no device (meta) or of another one."""
    if _keys_of(tensor).raw_repr() & _PROCESSOR:
        _set_of(tensor).value |= _BIT


def unmark(tensor: Tensor) -> None:
    """Clears the bit."""
    _set_of(tensor).value &= ~_BIT


class unmarked:  # noqa: N801 (a block: with unmarked(tensor))
    """While in the block the tensor does not bear the bit: for the few functions of torch that take it for a type."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._before = tensor, marks(tensor)

    def __enter__(self) -> None:
        if self._before:
            unmark(self._tensor)

    def __exit__(self, *_: object) -> None:
        if self._before:
            mark(self._tensor)


def _set_of(tensor: Tensor) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(tensor._cdata + _offset())


@functools.cache
def _offset() -> int:
    """Where the set lies in a tensor: the one place that holds it in tensors of four kinds, and that takes the bit.

    Raises ``SoftwareMissing`` for a torch whose tensors are made otherwise.
    """
    one = torch.ones(2)
    samples = (one, torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2, requires_grad=True))
    found = set.intersection(*map(_places_of_the_set, samples))
    if len(found) == 1:
        offset = found.pop()
        ctypes.c_uint64.from_address(one._cdata + offset).value |= _BIT
        if marks(one):
            return offset
    raise SoftwareMissing(
        f"torch {torch.__version__} does not show where its tensors keep their dispatch keys.",
        [f"{len(found)} places hold them, one is expected"],
        ["pip install torch==2.13.0"],
    )


def _places_of_the_set(tensor: Tensor) -> set[int]:
    value, start = _keys_of(tensor).raw_repr(), tensor._cdata
    return {at for at in range(0, _SEARCHED, 8) if ctypes.c_uint64.from_address(start + at).value == value}


_KEY: Any = parse_dispatch_key("Fake")
_include = include_key
_waiting_modes = dispatch_modes_waiting

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _pass_on(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In a thread that outlives the simulation: once, for it is seen no longer then."""
    return func._op(*args, **kwargs)


current_handler: Handler = _pass_on


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    if _waiting_modes():  # those of the program come first, and call the operation again
        with pop_dispatch_mode() as mode:  # torch's own way to it may not come back here
            return mode.__torch_dispatch__(func, (), args, kwargs)
    _include(_KEY, False)
    try:
        return current_handler(func, args, kwargs)
    finally:
        _include(_KEY, current_handler is not _pass_on)


def handle_by(handler: Handler | None) -> None:
    """Says what sees the operations from now on, in the threads that are ``seen``; it is not called for its own."""
    global current_handler
    register(_fallback)
    current_handler = handler or _pass_on


def see() -> None:
    """Sees the operations of this thread from now on, until it computes where no simulation is in force."""
    _include(_KEY, True)


class observe:  # noqa: N801 (a block: with observe())
    """While in the block, the operations of this thread are seen (or not)."""

    __slots__ = ("_before", "_now")

    def __init__(self, now: bool = True) -> None:
        self._now = now

    def __enter__(self) -> None:
        self._before = is_key_included(_KEY)
        _include(_KEY, self._now)

    def __exit__(self, *_: object) -> None:
        _include(_KEY, self._before)


def is_view(schema: Any) -> bool:
    """Return whether the result of an operation shares the memory of an argument, without being that argument."""
    return any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)


@functools.cache
def register(fallback: Callable[..., Any], writes: bool = True) -> tuple[torch.library.Library, ...]:
    """Makes a fallback known to torch, once a process: nothing comes there but in threads that are ``seen``.

    ``writes``: it sees operations that return nothing new as well, until ``see_writes`` they pass by it else.
    """
    everything = torch.library.Library("_", "IMPL", "Fake")
    everything.fallback(fallback)
    looking = {full for full in _with_kernels() if _only_looks(full) or not (writes or _makes_tensors(full))}
    libraries: dict[str, torch.library.Library] = {}
    for full in looking if _is_called_under_modes() else all_operators():
        library, _, name = full.partition("::")
        if library not in libraries:
            libraries[library] = torch.library.Library(library, "IMPL", "Fake")
        kernel = torch.library.fallthrough_kernel if full in looking else functools.partial(_named, fallback, full)
        libraries[library].impl(name, kernel)
    return everything, *libraries.values()


@functools.cache
def see_writes(fallback: Callable[..., Any]) -> torch.library.Library:
    """Has the fallback see operations that return nothing new too."""
    library = torch.library.Library("aten", "IMPL", "Fake")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for full in _with_kernels():
            if not (_makes_tensors(full) or _only_looks(full)):
                library.impl(full.partition("::")[2], functools.partial(_named, fallback, full))
    return library


def _with_kernels() -> set[str]:
    names = operators_with_kernel
    return {*names("CPU"), *names("CompositeExplicitAutograd")}


def _makes_tensors(full: str) -> bool:
    """Return whether an operation returns tensors that are none of its arguments; that is said of torch's own alone."""
    name, _, overload = full.partition(".")
    return not name.startswith("aten::") or any(
        "Tensor" in str(result.type) and (result.alias_info is None or not result.alias_info.is_write)
        for result in _schema(name, overload).returns
    )


def _is_called_under_modes() -> bool:
    """Return whether torch calls the fallback where a mode is in force: up to 2.9 and more it knows it by operation
    alone."""
    try:
        with observe(), _Passing():
            torch.ops.aten.scalar_tensor.default(0)
    except RuntimeError:  # an assertion of its own
        return False
    return True


class _Passing(TorchDispatchMode):
    """A mode that does nothing, not even import the compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _only_looks(full: str) -> bool:
    name, _, overload = full.partition(".")
    return name.startswith("aten::") and not name.startswith("aten::lift") and is_view(_schema(name, overload))


def _named(fallback: Callable[..., Any], full: str, *args: Any, **kwargs: Any) -> Any:
    return fallback(_operation(full), *args, **kwargs)


@functools.cache
def _operation(full: str) -> Any:
    library, _, name = full.partition("::")
    packet, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, library), packet), overload or "default")


def _schema(name: str, overload: str) -> Any:
    return get_schema(name, overload)
