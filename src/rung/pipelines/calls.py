"""Calls of networks: in which dtype, and how many of a batch at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import tree_flatten, tree_map, tree_unflatten

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def converted(args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Arguments:
    """The arguments on a device, their floating-point tensors in a dtype.

    Steps in time and positions stay in f32: in bfloat16 a step of 999 is 1000, and the 301st place is the 300th.
    """

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype if value.is_floating_point() and value.dim() > 1 else None)

    def positions(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    named = {key: tree_map(positions if key.endswith("ids") else moved, value) for key, value in kwargs.items()}
    return tree_map(moved, args), named


def restored(result: Any, device: torch.device) -> Any:
    """A result as the pipeline goes on with it: on its device, floating-point tensors in f32."""

    def back(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, torch.float32 if value.is_floating_point() else None)

    return tree_map(back, result)


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many inputs a call has: the length of its first tensor."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    return 1


def divisible(kwargs: dict[str, Any]) -> bool:
    """Return whether the inputs of a call do not depend on each other; those of a temporal decoder are frames of one
    video."""
    return "num_frames" not in kwargs


def in_slices(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], at_once: int) -> Any:
    """The call with so many inputs of its batch at a time: the same result with less memory."""
    batch = batch_of(args, kwargs)
    if at_once >= batch or not divisible(kwargs):
        return call(*args, **kwargs)

    def cut(value: Any, first: int) -> Any:
        batched = isinstance(value, Tensor) and value.dim() and len(value) == batch
        return value[first : first + at_once] if batched else value

    parts, tree = [], None
    for first in range(0, batch, at_once):
        sliced = tree_map(lambda value, first=first: cut(value, first), args)
        named = {
            key: value if key.endswith("ids") and value is not kwargs.get("input_ids")
            else tree_map(lambda one, first=first: cut(one, first), value)
            for key, value in kwargs.items()
        }  # fmt: skip
        leaves, tree = tree_flatten(call(*sliced, **named))
        parts.append(leaves)
    assert tree is not None
    joined = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*parts, strict=True)]
    return tree_unflatten(joined, tree)
