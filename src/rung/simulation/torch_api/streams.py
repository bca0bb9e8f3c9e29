"""Streams and events of the simulated card: everything has happened when it returns, so nothing waits."""

from __future__ import annotations

import time
from typing import Any

from rung.simulation.simulation import Card, World


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
