"""The levels of CPU instructions, one file each, found by folder; and the one that kernels are compiled for.

``current()`` is the highest level that the compiler's target allows. ``RUNG_CPU_LEVEL`` lowers both, see
``rung.kernels.cpu.target.configure``. Which level a device has is proved by ``rung.run.probe``.
"""

from __future__ import annotations

import functools
import importlib

from rung.core.errors import RungError
from rung.core.registry import module_names
from rung.core.settings import CPU_LEVEL
from rung.kernels.cpu import target
from rung.kernels.isa.level import Level

VARIABLE = CPU_LEVEL.variable

_lowered: list[str] = []  # levels that a self-check has found wrong in this process


@functools.cache
def every() -> tuple[Level, ...]:
    """All levels, the highest first."""
    found = [importlib.import_module(f"{__name__}.{name}").LEVEL for name in module_names(__path__)]
    return tuple(sorted(found, key=lambda level: -level.rank))


def named(name: str) -> Level:
    """Return the level of a name; raises ``RungError`` for an unknown one."""
    for level in every():
        if level.name == name:
            return level
    raise RungError(
        f"{VARIABLE}={name} names no level of CPU instructions",
        ["levels: " + ", ".join(level.name for level in every())],
        [f"unset {VARIABLE}", f"export {VARIABLE}=generic"],
        code="cpu-level",
    )


def allowed() -> list[Level]:
    """The levels that the compiler's target has and the user allows, the highest first."""
    there, arch, limit = target.features(), target.arch(), target.level()
    most = named(limit).rank if limit else every()[0].rank
    return [level for level in every() if level.rank <= most and level.target(arch, there)]


def current() -> Level:
    """The level that kernels are compiled for from now on."""
    there = allowed()
    return next((level for level in there if level.name not in _lowered), there[-1])


def lower() -> Level | None:
    """Compile for the next lower level from now on, because a kernel was wrong; None where there is none."""
    now = current()
    if now.name == allowed()[-1].name:
        return None
    _lowered.append(now.name)
    return current()
