"""Every kernel that a module of the processor names has been compiled for a check; those of factories are not named."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from rung.kernels import cpu
from rung.kernels.cpu.compiled import Kernel
from tests.emulation.checks import Check

#: What no check here calls: the measures of a machine, and what OpenMP runs, which comes with torch.
_ELSEWHERE = tuple(f"rung.kernels.cpu.thread_pool:{name}" for name in ("enter", "_enter_program", "read_chunks"))


def kernels() -> Iterator[Kernel]:
    """Yield the kernels that modules name, by themselves or in a dictionary."""
    for module in pkgutil.walk_packages(cpu.__path__, f"{cpu.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            for each in value.values() if isinstance(value, dict) else [value]:
                if isinstance(each, Kernel):
                    yield each


def complete() -> str:
    """Name the kernels that this process has not compiled; all other checks have run before."""
    missing = {each.name for each in kernels() if not each._address} - set(_ELSEWHERE)
    return f"no check runs {', '.join(sorted(missing))}" if missing else ""


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    yield "all kernels", complete
