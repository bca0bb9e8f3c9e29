"""Kernels in CUDA C on a simulated card: built for the processor, in whose memory its tensors lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from rung.kernels.cuda import driver, fibers
from rung.kernels.cuda.arguments import Argument
from rung.kernels.cuda.source import Source
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World


def install(world: World, patches: Patches) -> None:
    """Launches them there; a graph that captures launches them when it is replayed."""

    def launch(
        device: torch.device, source: Source, kernel: str, grid: tuple[int, int], arguments: Sequence[Argument]
    ) -> None:
        run = partial(fibers.launch, source, kernel, grid, arguments)
        if world.capturing is not None:
            world.capturing.keep(run)
        else:
            run()

    patches.set(driver, "launch", launch)
