"""Hold what ``rung exec --device cpu`` puts in force in a program, for the life of the process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rung.exec.cuda_on_cpu import libraries, machine, operations, tensors
from rung.run import torch_device
from rung.simulation import context, queries
from rung.simulation.dispatch import dispatch_hook
from rung.simulation.dispatch.patches import Patches, forget
from rung.simulation.simulation import World
from rung.simulation.torch_api import generators, storages, streams
from rung.simulation.torch_api.tensors import functions, install_factories


def put_in_force(say: Callable[[str], None]) -> World:
    """Has the processor answer to ``cuda`` from now on; ``say`` takes a sentence for the end of the run.

    Raises ``SoftwareMissing`` for a torch whose tensors cannot be marked.
    """
    dispatch_hook.mark(torch.empty(0))  # raises before anything is changed
    world, patches = machine.Machine(say), Patches()
    methods, makers = tensors.Moves(world), tuple(functions())
    install_factories(methods, patches)
    methods.install(patches)
    storages.install(world, patches)
    patches.set(torch, "Generator", generators.generator_class(world))
    queries.install(world, patches, machine.Answers)
    tensors.install(world, patches)
    context.install_peers(world, patches)
    streams.install_graphs(world, patches, operations.WatchingGraph)
    operations.install_autocast(patches)
    storages.install_serialization(world)
    libraries.install(say, patches)
    operations.install(world)
    operations.install_products()
    machine.install(makers, patches)  # last: around what the others have put there
    torch_device.STANDING_IN["cuda"] = "cpu"
    forget()
    patches.follow()
    world.active = True
    return world
