"""A device where it is printed, and in a notebook: what it is, and its verdict on each dtype."""

from __future__ import annotations

from html import escape

from rung.cli.views.devices.overview import heading, instruction_sets, kernels, speed
from rung.core.types import Device, Level

_WORDS = {Level.NATIVE: "native", Level.EMULATED: "emulated", Level.ABSENT: "absent", Level.UNKNOWN: "not known"}
_DTYPES = ("f32", "f16", "bf16", "int8")


def text(device: Device) -> str:
    """Return its heading, its verdict and how fast memory is read, a line each."""
    return "\n".join(_lines(device))


def html(device: Device) -> str:
    """Return the same as HTML."""
    first, *rest = map(escape, _lines(device))
    return f"<p><b>{first}</b><br>{'<br>'.join(rest)}</p>"


def verdict(device: Device) -> str:
    """Return ``multiplies f32 native, f16 and bf16 emulated, int8 absent``."""
    found: dict[Level, list[str]] = {}
    for dtype in _DTYPES:
        found.setdefault(device.capability(f"matmul.{dtype}").level, []).append(dtype)
    return "multiplies " + ", ".join(f"{' and '.join(names)} {_WORDS[level]}" for level, names in found.items())


def _lines(device: Device) -> list[str]:
    lines = [heading(device), verdict(device), speed(device), instruction_sets(device), kernels(device)]
    return [*filter(None, lines), f"more: rung devices {device.id}"]
