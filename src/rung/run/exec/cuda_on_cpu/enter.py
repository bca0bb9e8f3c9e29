"""What ``rung exec --device cpu`` puts in force in a program, for the life of the process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rung.run import places
from rung.run.exec.cuda_on_cpu import autocast, libraries, machine, operations, products, tensors
from rung.run.simulate import (
    factories,
    generators,
    graphs,
    host_key,
    peers,
    queries,
    remembered,
    serialization,
    storages,
)
from rung.run.simulate.patches import Patches
from rung.run.simulate.world import World


def put_in_force(say: Callable[[str], None]) -> World:
    """Has the processor answer to ``cuda`` from now on; ``say`` takes a sentence for the end of the run.

    Raises ``SoftwareMissing`` for a torch whose tensors cannot be marked.
    """
    host_key.mark(torch.empty(0))  # raises before anything is changed
    world, patches = machine.Machine(say), Patches()
    methods = tensors.Moves(world)
    factories.install(methods, patches)
    methods.install(patches)
    storages.install(world, patches)
    patches.set(torch, "Generator", generators.generator_class(world))
    queries.install(world, patches, machine.Answers)
    tensors.install(world, patches)
    peers.install(world, patches)
    graphs.install(world, patches, operations.WatchingGraph)
    autocast.install(patches)
    serialization.install(world)
    libraries.install(say, patches)
    operations.install(world)
    products.install()
    places.STANDING_IN["cuda"] = "cpu"
    remembered.forget()
    patches.follow()
    world.active = True
    return world
