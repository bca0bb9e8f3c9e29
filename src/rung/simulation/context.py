"""``rung.simulate``: the block in which a card is simulated, and everything that it puts in force and back."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import threading
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.core.types import Device
from rung.hardware import detect
from rung.kernels.cuda import driver, fibers
from rung.kernels.cuda.driver import Argument
from rung.kernels.cuda.source import Source
from rung.run.torch_private import C, all_operators, default_device
from rung.simulation import queries
from rung.simulation.defects import KINDS, Defect
from rung.simulation.dispatch import dispatch_hook, threads
from rung.simulation.dispatch.dispatcher import Dispatch
from rung.simulation.dispatch.patches import Patches, forget, install
from rung.simulation.simulation import World
from rung.simulation.torch_api import generators, storages
from rung.simulation.torch_api.autocast import Autocast
from rung.simulation.torch_api.streams import install_graphs
from rung.simulation.torch_api.tensors import Methods, install_factories


def install_peers(world: World, patches: Patches) -> None:
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


def install_kernels(world: World, patches: Patches) -> None:
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
        install_factories(methods, patches)
        methods.install(patches)
        storages.install(world, patches)
        patches.set(torch, "Generator", generators.generator_class(world))
        queries.install(world, patches)
        install_peers(world, patches)
        install_graphs(world, patches)
        install_kernels(world, patches)
        autocast.install(patches)
        undo.callback(autocast.remove)
        undo.callback(storages.install_serialization(world))
        undo.callback(install(world, patches))
        for device in devices:
            undo.enter_context(detect.pretended(device))
        forget()
        undo.callback(forget)
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


_in_force: Any = None
_lock = threading.Lock()


class simulate(contextlib.ContextDecorator):  # noqa: N801 (used as a function: rung.simulate)
    """Simulates cards of the catalog: as ``with rung.simulate("Quadro P2200"):`` or as a decorator.

    A name is one of the catalog or a device file (``sim:`` may stand before it), or a ``Device``; several names are
    several cards in one machine, ``cuda:0``, ``cuda:1`` in that order, and so is ``"2x3090"``. ``memory``: bytes or a
    text like ``4.6GB`` that are free on each, fewer than the card is sold with or more; ``software`` a build of torch,
    ``"torch 1.10+cu102"``; ``defects`` operations that fail there. In the block the cards are ``cuda`` (``xpu`` for
    Intel, ``mps`` for Apple) for torch and the first devices for rung; the block's value is the first ``Device``,
    ``rung.devices()`` has all. In force in all threads until the block ends.

    Raises ``UnknownDevice``; ``UsageError`` for a CPU, cards that no one torch drives, a second simulation at the same
    time, or a real card in use.
    """

    def __init__(
        self,
        *names: str | Device,
        memory: str | int | None = None,
        software: str | None = None,
        defects: Iterable[Defect] = (),
    ) -> None:
        from rung.simulation.cards import describe

        self.devices = describe(names, memory, software)
        self._defects = tuple(defects)
        if strange := [one for one in self._defects if not isinstance(one, Defect)]:
            raise UsageError(
                f"{strange[0]!r} is no defect.",
                ways_out=['rung.Defect("matmul", "f16", RuntimeError, "text")'],
                code="name-unknown",
            )
        self._undo: contextlib.ExitStack | None = None

    def __call__(self, func: Any) -> Any:
        """The function with the cards simulated during each call."""
        if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise UsageError(
                f"{func.__qualname__} cannot be decorated with rung.simulate: it would run after its call has ended.",
                ["it is a generator or a coroutine, whose body runs later"],
                ["with rung.simulate(...):   inside of its body"],
            )
        return super().__call__(func)

    def _recreate_cm(self) -> simulate:
        """For each call of a decorated function a block of its own."""
        return simulate(*self.devices, defects=self._defects)

    def __enter__(self) -> Device:
        global _in_force
        with _lock:
            if _in_force is not None:
                names = " and ".join(device.name for device in _in_force.devices)
                raise UsageError(
                    f"{names} is being simulated already.",
                    ["there is one simulation at a time: inside it, cuda means its cards"],
                    ["leave the first block, then enter the second", 'rung.simulate("3090", "3060")   both at once'],
                )
            _in_force = self
        try:
            self._undo = put_in_force(self.devices, self._defects)
        except BaseException:
            _in_force = None
            raise
        atexit.register(self.__exit__)  # a block that nobody leaves, in a notebook say, would be torn down in no order
        return self.devices[0]

    def __exit__(self, *exception: Any) -> None:
        global _in_force
        if self._undo is None:  # left at the end of the process, which may close what holds the block after it
            return
        atexit.unregister(self.__exit__)
        try:
            self._undo.close()
        finally:
            self._undo = None
            _in_force = None


def current() -> Device | None:
    """The first card that is being simulated, or None."""
    return _in_force.devices[0] if _in_force is not None else None
