"""Choose how many threads compute on a processor whose cores are unlike or many: measured once, kept by machine.

Elsewhere it is a core each, and nothing is measured. Decoding is limited by what the cores read together; beyond that
number more of them only wait for each other. ``rung.kernels.cpu.thread_pool`` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware import json_cache, probe_cache
from rung.hardware.topology import thread_counts

#: Fewer threads are taken while they reach this share of the fastest: the others leave cores to other programs.
_NEARLY = 0.97
#: Details of a processor that the number depends on.
_DEPENDS = ("cores", "threads", "core_kinds", "numa_nodes", "quota")


def candidates(processor: Device) -> tuple[int, ...]:
    """The numbers of threads that are worth measuring there; one where nothing needs to be measured."""
    details = processor.details
    kinds, nodes = dict(details.get("core_kinds", {})), int(details.get("numa_nodes", 1))
    return thread_counts(int(details.get("cores", 1)), kinds, nodes)


def fewest(rates: Mapping[int, float]) -> int:
    """Return the fewest threads that are nearly as fast as any.

    >>> fewest({8: 60.0, 12: 61.0, 16: 55.0})
    8
    """
    return min(count for count, rate in rates.items() if rate >= _NEARLY * max(rates.values()))


def kept(processor: Device) -> int | None:
    """The number that an earlier measurement found best there, or None."""
    numbers = candidates(processor)
    found = json_cache.read(_key(processor)) if len(numbers) > 1 else None
    return found if isinstance(found, int) and found in numbers else None


def keep(processor: Device, rates: Mapping[int, float]) -> None:
    """Keep what is best by what was measured."""
    json_cache.write(_key(processor), fewest(rates))


def recall(processor: Device) -> Device:
    """The processor with the number of threads that was measured, or as it is."""
    count = kept(processor)
    return (
        replace(processor, details=FrozenDict({**processor.details, "compute_threads": count})) if count else processor
    )


def _key(processor: Device) -> dict[str, str]:
    details = {name: str(processor.details[name]) for name in _DEPENDS if name in processor.details}
    return {"what": "threads", "name": processor.name, "sources": probe_cache.sources()} | details
