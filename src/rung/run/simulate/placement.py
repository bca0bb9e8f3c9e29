"""Which tensors lie on the card: a mark on their storage.

The storage itself is ordinary memory, so that autograd, views, ``.data`` and references work as they always do. A mark
lives as long as its storage, and gives the card's memory back with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rung.run.simulate import refusals

if TYPE_CHECKING:
    from rung.run.simulate.allocator import Block
    from rung.run.simulate.world import World

_ATTRIBUTE = "_rung_mark"

#: torch's own getters, whatever stands in for them while a simulation is in force.
real_device = torch._C.TensorBase.device.__get__
_real_is_cpu = torch._C.TensorBase.is_cpu.__get__  # type: ignore[attr-defined]


class Mark:
    """The memory of a card that a storage stands for."""

    __slots__ = ("block", "world")

    def __init__(self, world: World, block: Block) -> None:
        self.world, self.block = world, block

    def __del__(self) -> None:
        self.world.allocator.release(self.block)


#: The mark of a tensor that torch made inside of an operation: it goes where it is used first.
UNDECIDED = object()


def mark(tensor: Tensor) -> Any:
    """The mark of a tensor's storage: ``Mark``, ``UNDECIDED`` or None. A sparse tensor bears it itself."""
    try:
        return tensor.untyped_storage().__dict__.get(_ATTRIBUTE)
    except (NotImplementedError, RuntimeError):  # no storage: sparse, or a wrapper
        return tensor.__dict__.get(_ATTRIBUTE)


def on_card(world: World, tensor: Tensor) -> bool:
    """Whether a tensor lies on the simulated card."""
    found = mark(tensor)
    return found.__class__ is Mark and found.world is world


def claim(world: World, tensor: Tensor, block: Block | None = None) -> None:
    """Puts a tensor's storage on the card, where it is not there yet.

    ``block`` is memory taken before. Raises torch's error when the memory is full or the card has no such dtype.
    """
    if not _real_is_cpu(tensor) or on_card(world, tensor):
        return
    refusals.check_dtype(world, tensor.dtype)
    try:
        bearer: Any = tensor.untyped_storage()
        size = bearer.nbytes()
    except (NotImplementedError, RuntimeError):
        bearer, size = tensor, tensor._values().numel() * tensor.element_size() if tensor.is_sparse else 0
    bearer.__dict__[_ATTRIBUTE] = Mark(world, block if block is not None else world.allocate(size))


def claim_storage(world: World, storage: torch.UntypedStorage) -> None:
    """Puts a storage on the card."""
    if not isinstance(storage.__dict__.get(_ATTRIBUTE), Mark):
        storage.__dict__[_ATTRIBUTE] = Mark(world, world.allocate(storage.nbytes()))


def storage_on_card(world: World, storage: torch.UntypedStorage) -> bool:
    """Whether a storage lies on the simulated card."""
    found = storage.__dict__.get(_ATTRIBUTE)
    return found.__class__ is Mark and found.world is world


def leave_open(tensor: Tensor) -> None:
    """Marks a tensor that torch made inside of an operation."""
    if _real_is_cpu(tensor) and tensor.layout is torch.strided:
        tensor.untyped_storage().__dict__.setdefault(_ATTRIBUTE, UNDECIDED)


def settle(tensor: Tensor) -> None:
    """Makes an undecided tensor one of the host."""
    if tensor.layout is torch.strided and mark(tensor) is UNDECIDED:
        del tensor.untyped_storage().__dict__[_ATTRIBUTE]


@contextlib.contextmanager
def wanting(world: World, card: bool | None) -> Iterator[None]:
    """While in the block, operations of this thread put their results on the card (True) or the host (False)."""
    before = world.local.wanted
    world.local.wanted = card
    try:
        yield
    finally:
        world.local.wanted = before
