"""Hold what torch does between cards, for ``torch.nn.DataParallel``: a torch without CUDA does not have these
functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import C
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World


def install(world: World, patches: Patches) -> None:
    """Puts them in force, under the names that ``torch/nn/parallel/comm.py`` calls."""

    def moved(tensor: Tensor, index: int | None) -> Tensor:
        return tensor.to("cpu" if index == -1 else world.card_of(index).torch_device)

    def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
        return [moved(tensor, index) for index in devices]

    def broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
        return [[moved(tensor, index) for tensor in tensors] for index in devices]

    def scatter(
        tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Any
    ) -> list[Tensor]:
        chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
        return [moved(chunk, index) for chunk, index in zip(chunks, devices, strict=False)]

    def gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
        return torch.cat([moved(tensor, destination) for tensor in tensors], dim)

    for function in (broadcast, broadcast_coalesced, scatter, gather):
        patches.set(C, f"_{function.__name__}", function)
