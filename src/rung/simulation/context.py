"""``rung.simulate``: the block in which a card is simulated, and everything that it puts in force and back."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import threading
from collections.abc import Iterable
from typing import Any

from rung.core.errors import UsageError
from rung.core.types import Device
from rung.simulation.defects import Defect

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
            from rung.simulation.enter import put_in_force

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
