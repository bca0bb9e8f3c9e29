"""Kernels that are compiled in a child process: LLVM keeps tens of MB of a process that compiles, which no plan counts.

A self-check compiles what it uses in its own child. This is for kernels of no rung, and for those that are gone from
the disk though their proof is there: Numba compiles again what is newer than its cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rung.run import self_check, worker

if TYPE_CHECKING:
    from rung.kernels.cpu.compiled import Kernel


def compile_apart(kernels: Iterable[Kernel]) -> None:
    """Compiles in one child those that are not on disk; this process only loads them.

    Where the child fails, or can keep nothing on disk, they are compiled here at their first call.
    """
    missing = [kernel.name for kernel in kernels if not kernel.on_disk]
    jobs = [worker.Job.of("rung.kernels.cpu.compiled:keep", name=name) for name in missing]
    if jobs:
        worker.run(jobs, self_check.LIMIT, most_lost=1)
