"""Compare what the device proves of itself with its row in the catalog."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.accept.check import Check, Target, share

from rung.core.types import Level
from rung.hardware import catalog
from rung.hardware.families.webgpu import SOFTWARE

ORDER, SECONDS = 1, 120
#: How far a measured rate may lie from the catalog's.
_NEAR = 0.2


def run(target: Target) -> Iterator[Check]:
    """Compare levels and rates."""
    device = target.device
    row = catalog.find(device.name)
    known = catalog.device(device.name) if row is not None else None
    sold = not target.is_cpu and device.arch != SOFTWARE
    yield Check("the catalog knows the device", known is not None if sold else None, {"name": device.name})
    for name, found in sorted(device.capabilities.items()):
        facts = {"found": str(found.level), "proof": str(found.proof), "source": found.source}
        expected = known.capability(name).level if known is not None else Level.UNKNOWN
        holds = found.level is not Level.UNKNOWN
        if expected is not Level.UNKNOWN:
            facts["expected"] = str(expected)
            holds = holds and found.level is expected
        yield Check(name, holds, facts)
    if known is not None and known.bandwidth and device.bandwidth:
        ratio = share(device.bandwidth, known.bandwidth)
        yield Check("bandwidth of the catalog's", abs(ratio - 1) <= _NEAR, {"ratio": ratio})
