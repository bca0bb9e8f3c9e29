"""The ops and their ladders, found by folder; importing this package registers all of them, without torch.

The package of an op has its ``LADDER`` and ``examples(format, dtype)``, what its rungs are chosen for with a name each;
``EXAMPLE_FORMATS`` and ``EXAMPLE_DTYPES`` where these are not all formats and f32; and ``shape_class(case)`` where
cases of several classes are computed by different code. ``self_check.py`` beside it proves a rung.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from rung.core.registry import ladders
from rung.core.types import YES, Case, Device, Verdict, no

_NAMES = sorted(
    name for path in __path__ for name in os.listdir(path) if os.path.isfile(os.path.join(path, name, "__init__.py"))
)
_OPS: dict[str, ModuleType] = {name: importlib.import_module(f"{__name__}.{name}") for name in _NAMES}

LADDERS = ladders()


def check_no_torch(case: Case, device: Device) -> Verdict:
    """The rungs of NumPy alone are for where torch is not installed, and know no tensors."""
    if "torch" in device.software:
        return no("is for where torch is missing")
    return YES


def shape_class(case: Case) -> str:
    """The name of the class of shapes that are computed by the same code: one row, a few, or many."""
    found = getattr(_OPS[case.op], "shape_class", None)
    return str(found(case)) if found is not None else "any"


def examples(op: str, format: str, dtype: str = "f32") -> list[tuple[str, Case]]:
    """The classes of shapes that the rungs of an op are chosen for, of a model of 7 billion parameters."""
    found: list[tuple[str, Case]] = _OPS[op].examples(format, dtype)
    return found


def example_formats(op: str) -> tuple[str, ...] | None:
    """The formats that an op is asked for in, or None: all."""
    found: tuple[str, ...] | None = getattr(_OPS[op], "EXAMPLE_FORMATS", None)
    return found


def example_dtypes(op: str) -> tuple[str, ...]:
    """Return the dtypes that an op is asked to compute in."""
    found: tuple[str, ...] = getattr(_OPS[op], "EXAMPLE_DTYPES", ("f32",))
    return found
