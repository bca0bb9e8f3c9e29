"""Where tensors lie: a mark on the storage of those that lie on a card.

The storage itself is ordinary memory, so that autograd, views, ``.data`` and references work as they always do. A mark
lives as long as its storage, and gives the card's memory back with it. Every storage has the attribute ``_rung_mark``,
None where there is no mark; a sparse tensor bears its mark itself.

In a plain world, where the processor stands in for the card, it is the other way round: ``host_key`` marks the tensors
of the host, all others are the card's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import tensor_device, tensor_is_cpu
from rung.simulation import refusals
from rung.simulation.allocator import Block
from rung.simulation.dispatch import dispatch_hook
from rung.simulation.simulation import HOST, Card, Host, World

#: torch's own getters, whatever stands in for them while a simulation is in force.
real_device = tensor_device
_real_is_cpu = tensor_is_cpu
# For good: other threads may be in the midst of an operation when a simulation ends.
torch.UntypedStorage._rung_mark = None  # type: ignore[attr-defined]


class _Inside(threading.local):
    transparent = False


_inside = _Inside()


class Mark:
    """The memory of a card that a storage stands for."""

    __slots__ = ("__weakref__", "block", "card")

    def __init__(self, card: Card, block: Block) -> None:
        self.card, self.block = card, block

    def __del__(self) -> None:
        self.card.release(self.block)


#: Where a tensor lies that torch made inside of an operation: it goes where it is used first.
UNDECIDED = Host()


def where(world: World, tensor: Tensor) -> Card | Host:
    """Where a tensor lies, or ``UNDECIDED``."""
    if world.plain:
        return world.cards[0] if dispatch_hook.on_card(tensor) and not _inside.transparent else HOST
    try:
        found: Any = tensor.untyped_storage()._rung_mark  # type: ignore[attr-defined]
    except (NotImplementedError, RuntimeError):  # no storage: sparse, or a wrapper
        found = tensor.__dict__.get("_rung_mark")
    if found is None:
        return HOST
    if found is UNDECIDED:
        result: Card | Host = UNDECIDED
        return result
    return found.card if found.card.world is world else HOST


def is_transparent() -> bool:
    """Return whether this thread is inside of a ``transparent`` function."""
    return _inside.transparent


def card_of(world: World, tensor: Tensor) -> Card | None:
    """The card that a tensor lies on."""
    found = where(world, tensor)
    return found if isinstance(found, Card) else None


def claim(card: Card, tensor: Tensor, block: Block | None = None) -> bool:
    """Puts a tensor's storage on the card where it lies on none yet, and says whether it did.

    ``block`` is memory taken before. Raises torch's error when the memory is full or the card has no such dtype.
    """
    if card.world.plain:
        dispatch_hook.unmark(tensor)
        return True
    if not _real_is_cpu(tensor):
        return False
    size = None
    try:
        bearer: Any = tensor.untyped_storage()
        found = bearer._rung_mark
    except (NotImplementedError, RuntimeError):
        bearer, size = tensor, tensor._values().numel() * tensor.element_size() if tensor.is_sparse else 0
        found = tensor.__dict__.get("_rung_mark")
    if found.__class__ is Mark and found.card.world is card.world:
        return False
    if card.type == "mps":
        refusals.check_dtype(tensor.dtype)
    if block is None:
        block = card.allocate(bearer.nbytes() if size is None else size)
    bearer._rung_mark = Mark(card, block)
    return True


def put(world: World, device: Card | Host, tensor: Tensor) -> None:
    """Puts a tensor that was made on the processor where it is wanted."""
    if isinstance(device, Card):
        claim(device, tensor)
    elif world.plain and not _inside.transparent:
        dispatch_hook.mark(tensor)


def claim_storage(card: Card, storage: Any) -> None:
    """Puts a storage on the card."""
    if card_of_storage(card.world, storage) is None:
        storage._rung_mark = Mark(card, card.allocate(storage.nbytes()))


def card_of_storage(world: World, storage: Any) -> Card | None:
    """The card that a storage lies on."""
    found = storage._rung_mark
    return found.card if isinstance(found, Mark) and found.card.world is world else None


def mark_of(world: World, tensor: Tensor) -> Mark | None:
    """The mark of a tensor with a storage on a card."""
    if tensor.layout is not torch.strided:
        return None
    storage: Any = tensor.untyped_storage()
    found = storage._rung_mark
    return found if isinstance(found, Mark) and found.card.world is world else None


def share(mark: Mark, tensor: Tensor) -> None:
    """Marks a second storage of the same memory, which is given back with the last of them."""
    _mark_once(tensor, mark)


def leave_open(tensor: Tensor) -> None:
    """Marks a tensor that torch made inside of an operation."""
    if _real_is_cpu(tensor) and tensor.layout is torch.strided:
        _mark_once(tensor, UNDECIDED)


def settle(tensor: Tensor) -> None:
    """Makes an undecided tensor one of the host."""
    storage: Any = tensor.untyped_storage() if tensor.layout is torch.strided else None
    if storage is not None and storage._rung_mark is UNDECIDED:
        storage._rung_mark = None


def _mark_once(tensor: Tensor, mark: Mark | Host) -> None:
    storage: Any = tensor.untyped_storage()
    if storage._rung_mark is None:
        storage._rung_mark = mark


def transparent(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The function, inside of which tensors of a plain world say where they really are."""

    @functools.wraps(compute)
    def run(*args: Any, **kwargs: Any) -> Any:
        before, _inside.transparent = _inside.transparent, True
        try:
            return compute(*args, **kwargs)
        finally:
            _inside.transparent = before

    return run


class wanting:  # noqa: N801 (a block: with wanting(...))
    """While in the block, operations of this thread put their results there."""

    __slots__ = ("_before", "_device", "_local")

    def __init__(self, world: World, device: Card | Host) -> None:
        self._local, self._device = world.local, device

    def __enter__(self) -> None:
        self._before = self._local.target
        self._local.target = self._device

    def __exit__(self, *_: object) -> None:
        self._local.target = self._before
