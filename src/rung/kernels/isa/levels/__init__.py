"""The levels of CPU instructions, one file each, found by folder."""

from __future__ import annotations

import functools
import importlib

from rung.core.errors import UsageError
from rung.core.registry import module_names
from rung.core.settings import CPU_LEVEL
from rung.core.version import PACKAGE
from rung.hardware import interpreter
from rung.kernels.isa.level import Level


@functools.cache
def every() -> tuple[Level, ...]:
    """All levels, the highest first."""
    found = [importlib.import_module(f"{__name__}.{name}").LEVEL for name in module_names(__path__)]
    return tuple(sorted(found, key=lambda level: -level.rank))


def table() -> str:
    """The text of ``rung/hardware/cpu_levels.table``: what a processor needs for each level, the highest first."""
    head = "# Levels of CPU instructions, made by make generate: level | processors | features"
    rows = (f"{each.name} | {kind.arch.name} | {' '.join(kind.needs)}" for each in every() for kind in each.targets)
    return "\n".join((head, *rows)) + "\n"


def write() -> None:
    """Write that file."""
    (PACKAGE / "hardware" / "cpu_levels.table").write_text(table(), encoding="utf-8")


def named(name: str) -> Level:
    """Return the level of a name; raises ``UsageError`` for an unknown one."""
    for level in every():
        if level.name == name:
            return level
    here = interpreter.arch()
    there = ", ".join(level.name for level in every() if any(each.arch.name == here for each in level.targets))
    raise UsageError(
        f"{CPU_LEVEL.variable}={name} names no level of CPU instructions",
        [f"levels: {there}"],
        [f"unset {CPU_LEVEL.variable}", f"export {CPU_LEVEL.variable}=generic"],
        code="cpu-level",
    )
