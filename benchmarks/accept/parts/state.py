"""The driver, the software, memory and the rates that other parts give their shares of."""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.accept.check import Check, Target

from rung.engine.planning import resident_memory
from rung.hardware.select import select_device
from rung.run.probe import measure

ORDER, SECONDS = 0, 120


def run(target: Target) -> Iterator[Check]:
    """Measure the device anew; nothing is read from disk."""
    device = select_device(target.name)
    facts = {"name": device.name, "arch": device.arch, "memory": device.memory, "free": device.free}
    yield Check("device", True, facts | {"software": dict(device.software), "details": dict(device.details)})
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        yield Check("nothing else runs", None, {"load": load, "cores": os.cpu_count()})
    yield Check("memory of an idle process", None, {"bytes": resident_memory()})
    found = measure(device)
    yield Check("read bandwidth", bool(found.bandwidth), {"bytes_per_second": found.bandwidth})
    yield Check("matrix rates", bool(found.peaks), {"operations_per_second": dict(found.peaks)})
    yield Check("the probe says nothing more", None, {"notes": list(found.notes)})
