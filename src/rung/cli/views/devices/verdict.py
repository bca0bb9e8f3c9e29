"""The verdict on a device in a few lines: its numbers, its matrix units, its memory, what would fit there."""

from __future__ import annotations

from rung.core.text import size
from rung.core.types import Device, Level
from rung.kernels import instructions
from rung.planning.answers.recommend import CONTEXT, FORMAT, largest

_WORDS = {Level.NATIVE: "native", Level.EMULATED: "emulated", Level.ABSENT: "absent", Level.UNKNOWN: "not known"}
_DTYPES = ("f32", "f16", "bf16", "int8", "fp8")


def verdict(device: Device) -> list[str]:
    """Return the sentence about numbers and units, and the one about memory and models, a line each."""
    return [numbers(device), fits(device)]


def numbers(device: Device) -> str:
    """Return ``f32 native, f16/bf16 emulated, fp8 absent, no tensor cores``."""
    found: dict[Level, list[str]] = {}
    for dtype in _DTYPES:
        found.setdefault(device.capability(f"matmul.{dtype}").level, []).append(dtype)
    parts = [f"{'/'.join(names)} {_WORDS[level]}" for level, names in found.items()]
    return ", ".join([*parts, *_units(device), *_level(device)])


def _level(device: Device) -> list[str]:
    """Return the level of CPU instructions that kernels are compiled for, where a CPU's is known."""
    level = instructions.level(device)
    return [f"kernels at level {level}"] if level else []


def fits(device: Device) -> str:
    """Return ``4.9 GB free: dense models up to 4B in q4_k with 2,048 tokens``."""
    free = device.free if device.free is not None else device.memory
    if not free:
        return "memory unknown"
    most = largest(device)
    if not most:
        return f"{size(free)} free: no language model fits in {FORMAT}"
    return f"{size(free)} free: dense models up to {most.upper()} in {FORMAT} with {CONTEXT:,} tokens"


def _units(device: Device) -> list[str]:
    """Return the matrix units of a card by dtype; nothing where the catalog has no word on them."""
    name = "tensor cores" if device.kind == "cuda" else "matrix units"
    known = [c for c in device.capabilities.values() if c.name.startswith("units.") and c.level is not Level.UNKNOWN]
    there = [c.name.removeprefix("units.") for c in known if c.level is not Level.ABSENT]
    if not known or device.kind == "cpu":
        return []
    return [f"{name} for {'/'.join(there)}"] if there else [f"no {name}"]
