"""The devices of this machine, from drivers and kernel files, with the proofs that earlier probes left on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rung.core.types import Device
from rung.hardware import probe_cache, thread_count
from rung.hardware.families import cpu

_pretended: list[Device] = []


def devices(cached: bool = True, software_adapters: bool = False) -> tuple[Device, ...]:
    """The CPU, then the accelerators; never imports torch. A simulated card comes first and alone beside the CPU.

    What a cached probe found replaces what the driver declares and the catalog says; ``cached=False`` leaves it out,
    but for the number of threads that compute. With ``software_adapters`` those of WebGPU that compute on the processor
    come last: for where a person named a device or looks at all of them, and nothing is chosen.
    """
    processor = thread_count.recall(cpu.identify())
    if _pretended:
        return (*_pretended, probe_cache.recall(processor) if cached else processor)
    found = (processor, *accelerators())
    if software_adapters:
        from rung.hardware.families import webgpu

        found = (*found, *webgpu.software_adapters(found))
    return tuple(probe_cache.recall(device) for device in found) if cached else found


def accelerators() -> tuple[Device, ...]:
    """The GPUs of this machine: NVIDIA, AMD, Intel, Apple; those without a working driver too, with the reason.

    After them what WebGPU reaches, which may be the same cards once more: ``details["card"]`` says which.
    """
    from rung.hardware.families import cuda, mps, rocm, webgpu, xpu

    cards = (*cuda.identify(), *rocm.identify(), *xpu.identify(), *mps.identify())
    return (*cards, *webgpu.identify((cpu.identify(), *cards)))


@contextlib.contextmanager
def pretended(device: Device) -> Iterator[None]:
    """While in the block this machine has that card and no other."""
    _pretended.append(device)
    try:
        yield
    finally:
        _pretended.remove(device)
