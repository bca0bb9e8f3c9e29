"""Rungs that are wrong on purpose: ``benchmarks.accept.faults:FAULT.IMPL`` is the implementation ``IMPL`` with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rung.core.types import resolve


def _scaled(values: Any) -> None:
    values *= 1.02


def _one_row(values: Any) -> None:
    values[len(values) // 2] *= 1.5


def _one_nan(values: Any) -> None:
    values.reshape(-1)[-1] = float("nan")


_FAULTS: dict[str, Callable[[Any], None]] = {"scaled": _scaled, "one_row": _one_row, "one_nan": _one_nan}
NAMES = tuple(_FAULTS)
#: Ops whose results are arrays, and what computes them.
OPS = ("linear", "embedding", "attention", "decode_step")
_COMPUTE = ("apply", "multiply", "attend", "look_up", "rows")


class Faulty:
    """An implementation with a fault in all that it computes."""

    def __init__(self, right: Any, fault: Callable[[Any], None]) -> None:
        self._right, self._fault = right, fault

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._right, name)
        if name not in _COMPUTE:
            return found

        def compute(*arguments: Any, **options: Any) -> Any:
            values = found(*arguments, **options)
            values = values.clone() if hasattr(values, "clone") else values.copy()
            self._fault(values)
            return values

        return compute


def __getattr__(name: str) -> Any:
    fault, _, implementation = name.partition(".")
    if fault not in _FAULTS or not implementation:
        raise AttributeError(name)
    return Faulty(resolve(implementation), _FAULTS[fault])
