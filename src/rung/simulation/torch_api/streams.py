"""Streams, events and graphs of the simulated card: everything has happened when it returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import EMPTY_PINNED_CACHE, BelowAutograd
from rung.simulation import refusals
from rung.simulation.dispatch.dispatch_hook import observe
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import HOST, Card, World
from rung.simulation.torch_api.placement import card_of


class Stream:
    """Stands in for ``torch.cuda.Stream`` and ``torch.xpu.Stream``; also the ``with torch.cuda.stream(...)`` block."""

    world: World
    current: Stream | None = None
    first: Stream | None = None

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = self.world.card_of(device).torch_device
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        """A number that tells streams apart; the default one is 0."""
        return 0 if self is type(self).default() else id(self)

    @classmethod
    def default(cls) -> Stream:
        """The stream that is current when no other is."""
        if cls.first is None:
            cls.first = cls()
        return cls.first

    def __enter__(self) -> Stream:
        cls = type(self)
        self._before, cls.current = cls.current, self
        return self

    def __exit__(self, *_: object) -> None:
        type(self).current = self._before

    def synchronize(self) -> None:
        """Waits for nothing."""

    def wait_event(self, event: Any) -> None:
        """Waits for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Waits for nothing."""

    def query(self) -> bool:
        """Everything submitted has happened."""
        return True

    def is_capturing(self) -> bool:
        """No graph is being captured."""
        return False

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has happened now."""
        event = event or Event(enable_timing=True)
        event.record(self)
        return event


class Event:
    """Stands in for ``torch.cuda.Event``; its times are those of this processor, not of the card."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Notes the time."""
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Waits for nothing."""

    def synchronize(self) -> None:
        """Waits for nothing."""

    def query(self) -> bool:
        """Everything recorded has happened."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events; raises as torch does without ``enable_timing`` or ``record``."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * (end._at - self._at)


def of_any_device(world: World, real: Any, simulated: Any, *, placed: bool) -> type:
    """Return the class that replaces ``torch.Stream`` or ``torch.Event``: ``made`` for the card, which is the default
    device, ``real`` for others; both are instances. ``placed``: ``made`` takes the device."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (real, simulated))

        def __call__(cls, device: Any = None, **options: Any) -> Any:
            if not world.active or not (device is None or isinstance(world.find(device), Card)):
                return real(device, **options)
            return simulated(device, **options) if placed else simulated(**options)

    return Meta(real.__name__, (), {"__doc__": real.__doc__, "__module__": "torch"})


#: Operations that wait for a value, which a capture does not have.
_WAITING = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "_unique2", "masked_select")


class Graph:
    """Hold what ``torch.cuda.CUDAGraph()`` makes in a simulation.

    While it captures, operations are computed and noted; ``replay`` computes them again from what their inputs hold by
    then and writes the results where they were. The graph keeps all memory in between, as a real one does.
    """

    world: World

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        # kernels that are no operations of torch, by the number of steps before them
        self._launches: dict[int, list[Callable[[], None]]] = {}

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: Any) -> None:
        """Notes from now on. Raises where another graph does."""
        if self.world.capturing is not None:
            raise refusals.not_while_capturing(self.world.card)
        self.reset()
        self.world.capturing = self

    def capture_end(self) -> None:
        """Notes no more."""
        self.world.capturing = None

    def note(self, call: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation of the simulation, noted. Raises for what waits for a value of the card."""
        world = self.world
        world.capturing = None
        if func._schema.name.split("::")[1] in _WAITING or self._leaves(func, args):
            raise refusals.not_while_capturing(world.card)
        try:
            result = call(func, args, kwargs)
        finally:
            world.capturing = self
        if (device := kwargs.get("device")) is not None and device.type == world.type:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        self._steps.append((func, args, kwargs, result))
        return result

    def keep(self, launch: Callable[[], None]) -> None:
        """Notes a kernel that is no operation of torch."""
        self._launches.setdefault(len(self._steps), []).append(launch)

    def _leaves(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether it copies from a card to the host."""
        lying = [card_of(self.world, value) is not None for value in args if isinstance(value, Tensor)]
        if func._schema.name == "aten::copy_":
            return lying == [False, True]
        return func._schema.name == "aten::_to_copy" and lying == [True] and self.world.local.target is HOST

    def replay(self) -> None:
        """Does it again."""
        random = torch.Tag.nondeterministic_seeded
        with observe(False), torch.inference_mode(), BelowAutograd():
            for number, (func, args, kwargs, result) in enumerate(self._steps):
                self._launch(number)
                if random in func.tags and kwargs.get("generator") is None:
                    output = self.world.card.by_chance(func, args, kwargs)
                else:
                    output = func(*args, **kwargs)
                _write(result, output)
            self._launch(len(self._steps))

    def _launch(self, number: int) -> None:
        """Launches what came before that step."""
        for launch in self._launches.get(number, ()):
            launch()

    def reset(self) -> None:
        """Forgets what was noted, and gives its memory back."""
        self._steps.clear()
        self._launches.clear()

    def pool(self) -> tuple[int, int]:
        """A name for its memory, which other graphs may be given; there is one pool here."""
        return (0, 1)


def _write(kept: Any, result: Any) -> None:
    """New results where the first ones lie; what changed its input, or only looks at it, is there already."""
    if isinstance(kept, Tensor):
        if kept.untyped_storage()._cdata != result.untyped_storage()._cdata:
            kept.copy_(result)
    elif isinstance(kept, (list, tuple)):
        for old, new in zip(kept, result, strict=True):
            _write(old, new)


def install_graphs(world: World, patches: Patches, graph: type[Graph] = Graph) -> None:
    """Puts the class of one simulation in force, which is made of ``graph``."""
    if world.type != "cuda":
        return
    simulated = type("CUDAGraph", (graph,), {"world": world, "__module__": "torch.cuda", "__doc__": Graph.__doc__})
    for module in (torch.cuda, torch.cuda.graphs):
        patches.set(module, "CUDAGraph", simulated)
        patches.set(module, "graph_pool_handle", lambda: (0, 1))
    patches.set(*EMPTY_PINNED_CACHE, lambda: None)  # pinned memory is the host's own here
    patches.set(torch.cuda.graphs.graph, "default_capture_stream", None)  # the class keeps the first one
