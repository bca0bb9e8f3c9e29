"""rung: any model, on the device you have.

>>> import rung
>>> model = rung.load("demo")                                      # doctest: +SKIP
>>> for piece in model.generate("Does a GTX 1080 multiply bfloat16?"):  # doctest: +SKIP
...     print(piece, end="")

The names below are loaded when they are first used: ``import rung`` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys

from rung import moved as _moved
from rung.hub.register import install as _install

TYPE_CHECKING = False  # typing's own costs the launcher of ``rung exec`` milliseconds
if TYPE_CHECKING:
    from typing import Any

    from rung.core.errors import RungError
    from rung.core.types import Device, Plan, Report
    from rung.core.version import __version__
    from rung.diagnosis.explain import explain
    from rung.hub.transformers import QuantizationConfig
    from rung.nn.quantize import quantize
    from rung.public import card, check, device, devices, load, plan
    from rung.run.trace import Trace, trace
    from rung.simulation.context import simulate
    from rung.simulation.defects import Defect

_PUBLIC = {
    "Defect": "rung.simulation.defects",
    "Device": "rung.core.types",
    "Plan": "rung.core.types",
    "QuantizationConfig": "rung.hub.transformers",
    "Report": "rung.core.types",
    "RungError": "rung.core.errors",
    "Trace": "rung.run.trace",
    "__version__": "rung.core.version",
    "card": "rung.public",
    "check": "rung.public",
    "device": "rung.public",
    "devices": "rung.public",
    "explain": "rung.diagnosis.explain",
    "load": "rung.public",
    "plan": "rung.public",
    "quantize": "rung.nn.quantize",
    "simulate": "rung.simulation.context",
    "trace": "rung.run.trace",
}

__all__ = [
    "Defect",
    "Device",
    "Plan",
    "QuantizationConfig",
    "Report",
    "RungError",
    "Trace",
    "__version__",
    "card",
    "check",
    "device",
    "devices",
    "explain",
    "load",
    "plan",
    "quantize",
    "simulate",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rung' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


_moved.install()
_install()


def __dir__() -> list[str]:
    return sorted(__all__)
