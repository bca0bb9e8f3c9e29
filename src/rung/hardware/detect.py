"""The devices of this machine, from drivers and kernel files, with the proofs that earlier probes left on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rung.core.types import Device
from rung.hardware import probe_cache, thread_count
from rung.hardware.families import cpu

_pretended: list[Device] = []


def devices(cached: bool = True) -> tuple[Device, ...]:
    """The CPU, then the accelerators; never imports torch. A simulated card comes first and alone beside the CPU.

    What a cached probe found replaces what the driver declares and the catalog says; ``cached=False`` leaves it out,
    but for the number of threads that compute.
    """
    processor = thread_count.recall(cpu.identify())
    if _pretended:
        return (*_pretended, probe_cache.recall(processor) if cached else processor)
    found = (processor, *accelerators())
    return tuple(probe_cache.recall(device) for device in found) if cached else found


def accelerators() -> tuple[Device, ...]:
    """The GPUs of this machine: NVIDIA, AMD, Intel, Apple; those without a working driver too, with the reason."""
    from rung.hardware.families import cuda, mps, rocm, xpu

    return (*cuda.identify(), *rocm.identify(), *xpu.identify(), *mps.identify())


@contextlib.contextmanager
def pretended(device: Device) -> Iterator[None]:
    """While in the block this machine has that card and no other."""
    _pretended.append(device)
    try:
        yield
    finally:
        _pretended.remove(device)
