"""Hold what ``rung exec --device cpu`` puts in force in a program, for the life of the process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rung.exec.cuda_on_cpu import libraries, machine, operations, tensors
from rung.run import torch_device
from rung.simulation import peers, queries
from rung.simulation.dispatch import cache_invalidation, host_key
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World
from rung.simulation.torch_api import factories, generators, graphs, serialization, storages


def put_in_force(say: Callable[[str], None]) -> World:
    """Has the processor answer to ``cuda`` from now on; ``say`` takes a sentence for the end of the run.

    Raises ``SoftwareMissing`` for a torch whose tensors cannot be marked.
    """
    host_key.mark(torch.empty(0))  # raises before anything is changed
    world, patches = machine.Machine(say), Patches()
    methods, makers = tensors.Moves(world), tuple(factories.functions())
    factories.install(methods, patches)
    methods.install(patches)
    storages.install(world, patches)
    patches.set(torch, "Generator", generators.generator_class(world))
    queries.install(world, patches, machine.Answers)
    tensors.install(world, patches)
    peers.install(world, patches)
    graphs.install(world, patches, operations.WatchingGraph)
    operations.install_autocast(patches)
    serialization.install(world)
    libraries.install(say, patches)
    operations.install(world)
    operations.install_products()
    machine.install(makers, patches)  # last: around what the others have put there
    torch_device.STANDING_IN["cuda"] = "cpu"
    cache_invalidation.forget()
    patches.follow()
    world.active = True
    return world
