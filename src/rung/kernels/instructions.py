"""Instructions that rung's kernels take for a weight and for a product, by level of CPU instructions, as counted.

``benchmarks/instructions.py`` counts them in assembly and writes ``instructions.table``. With the instructions that the
cores of a processor of the catalog end in a second (``Device.details["instructions_per_second"]``) they give the speed
of a processor that nobody has measured.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from rung import formats
from rung.core.types import Device, Level
from rung.kernels.cpu.pack.layouts import FORMATS, layout_of

_TABLE = Path(__file__).with_name("instructions.table")
#: The share of a core's rate in its first cache that whole kernels reach, which wait for the other caches, for memory
#: and for each other: prompts of four files on a Zen 4 held to AVX2 reached 0.53 to 0.73 (benchmarks/cpu_levels.py).
_REACHED = 0.65
#: Instructions a value between the linears (normed, activated, quantized), as multiples of those of an f32 weight; of a
#: layer of one token beside its linears; and of a row of the cache, as multiples of those of an f16 weight.
_VALUE, _LAYER = 100.0, 3e5


@functools.cache
def table() -> Mapping[tuple[str, str], tuple[float, ...]]:
    """Instructions a weight with one row, and of packed weights a product with many rows, by level and layout."""
    found = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            level, layout, *counts = line.split(" | ")
            found[level, layout] = tuple(float(count) for count in counts)
    return found


def rate(device: Device) -> float | None:
    """Instructions of inner loops that all cores end in a second; None for a device whose cores are not known."""
    known = device.details.get("instructions_per_second")
    return _REACHED * float(known) if known and level(device) else None


def level(device: Device) -> str:
    """The level of CPU instructions that kernels are compiled for on a device, empty where it is not known."""
    kernels = device.capability("isa.kernels")
    return kernels.detail if kernels.level is Level.NATIVE else ""


def seconds_of_weight(device: Device, format: str) -> float | None:
    """Seconds of a weight with one row of activations where memory keeps up; None where nothing was counted."""
    return _seconds(device, format, 0)


def seconds_of_product(device: Device, format: str) -> float | None:
    """Seconds of a product with many rows of activations; None where nothing was counted, as for floats."""
    return _seconds(device, format, 1)


def seconds_of_value(device: Device) -> float | None:
    """Seconds of a value between the linears of a prompt."""
    found = _seconds(device, "f32", 0)
    return None if found is None else _VALUE * found


def seconds_of_layer(device: Device) -> float | None:
    """Seconds of a layer of a token beside its linears, which the threads begin and end together."""
    speed = rate(device)
    return None if speed is None else _LAYER * int(device.details.get("cores", 1)) / speed


def seconds_of_cache(device: Device, group: int) -> float | None:
    """Seconds of a value of the cache, in 16 bits, with so many heads of queries that share it."""
    found = _seconds(device, "f16", 0)
    return None if found is None else found * (1 + group) / 2


def _seconds(device: Device, format: str, which: int) -> float | None:
    speed, counted = rate(device), table().get((level(device), _layout(format)), ())
    return counted[which] / speed if speed and len(counted) > which else None


@functools.cache
def _layout(format: str) -> str:
    """The name of a layout as the table has it: codebooks of longer blocks are as those of 64 columns."""
    kind = format.split(":")[0]
    if kind not in FORMATS:
        return kind
    name = layout_of(formats.get(format)).name
    return "codebook64" if name.startswith("codebook") else name
