"""Hold what a simulation puts in force, in order, each with its way back."""

from __future__ import annotations

import contextlib
import warnings

import torch

from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.core.types import Device
from rung.hardware import detect
from rung.run.torch_private import all_operators, default_device
from rung.simulation import compiled, peers, queries
from rung.simulation.defects import KINDS, Defect
from rung.simulation.dispatch import cache_invalidation, compiling, dispatch_hook, threads
from rung.simulation.dispatch.dispatcher import Dispatch
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import World
from rung.simulation.torch_api import factories, generators, graphs, serialization, storages
from rung.simulation.torch_api.autocast import Autocast
from rung.simulation.torch_api.tensors import Methods


def put_in_force(devices: tuple[Device, ...], defects: tuple[Defect, ...]) -> contextlib.ExitStack:
    """Simulates the cards from now on; closing what is returned puts everything back."""
    world = World(devices, defects)
    _warn_of_unknown(defects)
    _no_real_card_in_use(world.type)
    with contextlib.ExitStack() as undo:
        patches = Patches()
        undo.callback(patches.undo)
        undo.callback(_restore_default_device, world.type, default_device())
        methods, autocast = Methods(world), Autocast(world)
        factories.install(methods, patches)
        methods.install(patches)
        storages.install(world, patches)
        patches.set(torch, "Generator", generators.generator_class(world))
        queries.install(world, patches)
        peers.install(world, patches)
        graphs.install(world, patches)
        compiled.install(world, patches)
        autocast.install(patches)
        undo.callback(autocast.remove)
        undo.callback(serialization.install(world))
        undo.callback(compiling.install(world, patches))
        for device in devices:
            undo.enter_context(detect.pretended(device))
        cache_invalidation.forget()
        undo.callback(cache_invalidation.forget)
        dispatch_hook.handle_by(Dispatch(world).run)
        undo.callback(dispatch_hook.handle_by, None)
        threads.install(dispatch_hook.observe, patches)
        patches.follow()
        world.active = True
        undo.callback(setattr, world, "active", False)
        undo.enter_context(threads.entered(dispatch_hook.observe))
        undo.enter_context(threads.reached(dispatch_hook.see))
        return undo.pop_all()


def _warn_of_unknown(defects: tuple[Defect, ...]) -> None:
    """Says when a defect names no operation: it would never be met. Libraries may still bring the operation later."""
    if not defects:
        return
    known = {name.partition("::")[2].partition(".")[0] for name in all_operators()} | {
        *KINDS,
        "*",
    }
    for defect in defects:
        if defect.op not in known:
            hint = did_you_mean(defect.op, known)
            warnings.warn(
                f"torch has no operation called {defect.op!r} yet, so this defect does nothing.{hint}", stacklevel=4
            )


def _restore_default_device(kind: str, before: torch.device | None) -> None:
    """Takes back a default device that was set to the card and left so."""
    now = default_device()
    if now is not None and now.type == kind:
        torch.set_default_device(before)


def _no_real_card_in_use(kind: str) -> None:
    module = getattr(torch, kind)
    if getattr(module, "is_initialized", lambda: False)():
        raise UsageError(
            f"A real {kind} device is in use in this process, and the simulated card would take its name.",
            [f"torch.{kind}.is_initialized() is true: tensors may lie on the real device"],
            [
                "simulate in a fresh process, before anything touches the real device",
                "CUDA_VISIBLE_DEVICES= python ...",
            ],
        )
