"""The GPU of an Apple processor, named through sysctl."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rung.core.types import Device
from rung.hardware.families import from_catalog
from rung.hardware.sysctl import sysctl


def identify(*, system: str = sys.platform, ask: Callable[[str], str] = sysctl) -> list[Device]:
    """The GPU of this Mac, or none on an Intel Mac and elsewhere; ``ask`` stands in for sysctl in tests.

    Memory is shared with the processor. Metal lets a GPU wire ``iogpu.wired_limit_mb`` of it. By default machines
    report (recommendedMaxWorkingSetSize) 10.7 of 16 GB, 17.8 of 24 GB, 107.5 of 128 GB
    (https://github.com/exo-explore/exo/pull/1672, https://github.com/sgl-project/sglang/pull/29949,
    https://github.com/antirez/ds4/pull/893): two thirds, and three quarters from 36 GB on, is below all of these.
    """
    if system != "darwin" or ask("hw.optional.arm64") != "1":
        return []
    name, memory = ask("machdep.cpu.brand_string"), ask("hw.memsize")
    limit = ask("iogpu.wired_limit_mb")
    total = int(memory) if memory.isdigit() else 0
    usable = total * 3 // 4 if total >= 36 << 30 else total * 2 // 3
    if limit.isdigit() and int(limit):
        usable = min(total, int(limit) << 20)
    return [
        from_catalog.device(
            id="mps",
            kind="mps",
            name=name,
            arch="",
            memory=total,
            free=usable,
            pci=None,
            driver=f"macOS {ask('kern.osproductversion')}",
            details={"shared_memory": True},
        )
    ]
