"""This machine as a run sees it: devices with their proofs, threads, and the memory that was used."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rung.core.errors import SoftwareMissing, UsageError
from rung.core.settings import THREADS
from rung.core.types import Device, Level, Proof
from rung.hardware import detect, topology
from rung.hardware.cpu_features import without_wheels

_MEASURING = 60.0  # seconds for numbers of threads, most of them for compiling one kernel, once
#: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h, and the largest of the latter that it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_IN_HEAP = -1, -3, 32 << 20


def threads(count: int | None) -> int:
    """Return how many threads compute: ``count``, else ``RUNG_THREADS``, else as many as are best on these cores.

    Never more than run at a time: each step of a model waits for all threads. Raises ``UsageError`` below 1.
    """
    requested = requested_threads(count)
    if requested is not None:
        return min(requested, _most_threads())
    details = this_processor().details
    return int(details.get("compute_threads") or details.get("cores", 1))


def requested_threads(count: int | None) -> int | None:
    """Return ``count``, else ``RUNG_THREADS``; None for as many as rung chooses."""
    if count is not None and count < 1:
        raise UsageError(f"{count} threads cannot compute: it is 1 or more.", code="value-out-of-range")
    requested: int | None = count or THREADS.read()
    return requested


def _most_threads() -> int:
    """Threads that this process can run at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_processor() -> Device:
    """Return the processor of this machine; a card may be listed before it."""
    return next(device for device in detect.devices(cached=False) if device.kind == "cpu")


#: What language models of the lean decoder need on a CPU, and what everything else needs.
LEAN, ALL = ("numba",), ("torch", "numba")


def missing_software(packages: Sequence[str] = ALL) -> list[str]:
    """Return which of the packages are not installed."""
    software = this_processor().software
    return [name for name in packages if name not in software]


def need_software(packages: Sequence[str] = ALL, what: str = "running a model") -> None:
    """Raises ``SoftwareMissing``, which says that ``what`` needs them, unless the packages are installed."""
    missing = missing_software(packages)
    if missing:
        raise SoftwareMissing(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; {what} needs it.",
            [why] if (why := without_wheels()) else (),
            ["docker run -it python:3.12-slim   # Debian, with glibc"]
            if why
            else [f"pip install 'rung[{'run' if 'torch' in missing else 'lean'}]'"],
        )


def proven_devices(on_probe: Callable[[Device], None], named: str | None = None) -> tuple[Device, ...]:
    """The devices of this machine, probed now where no probe has been before; ``on_probe`` is told before each.

    A card without a working driver is not tried: that it computes nothing is known. Software adapters are among them
    where a device of WebGPU is ``named``.
    """
    found = []
    for device in detect.devices(software_adapters=(named or "").startswith("webgpu")):
        proved = any(c.proof is Proof.PROBE for c in device.capabilities.values())
        if device.real and not proved and device.capability("matmul.f32").level is not Level.ABSENT:
            from rung.run.probe import probe

            on_probe(device)
            device = probe(device)
        if device.kind == "cpu" and device.real:
            _choose_threads(device)
        found.append(device)
    return tuple(found)


def _choose_threads(processor: Device) -> None:
    """Measure how many threads compute best where cores are unlike or many, unless that is known."""
    counts = topology.candidates(processor)
    if len(counts) < 2 or topology.kept(processor) is not None:
        return
    from rung.run import worker

    job = worker.Job.of("rung.kernels.cpu.thread_rates:rates", counts=list(counts))
    outcome = worker.run([job], _MEASURING)[0]
    if outcome.ok:
        topology.keep(processor, {int(count): float(rate) for count, rate in outcome.value.items()})


def machine_memory() -> int:
    """Bytes of the machine's memory that this process may use; 0 where nobody knows."""
    return next((device.memory for device in detect.devices() if device.kind == "cpu"), 0)


def resident_memory() -> int:
    """The resident size of this process, in bytes."""
    import psutil

    result: int = psutil.Process().memory_info().rss
    return result


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        import psutil

        used = psutil.Process().memory_info()
        return int(getattr(used, "peak_wset", used.rss))  # Windows counts the peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stolen() -> float:
    """Seconds that the machine below has taken from this one's processors since it started, where Linux counts them."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def keep_heap_whole() -> None:
    """Has large arrays mapped and unmapped one by one, where glibc would keep them in its heap, which then has holes.

    Slabs that are decoded while a prompt is read made the peak of a bf16 model of 600 MB 250 MB higher. Even arrays of
    1 to 2 MB in the heap cost an f16 model of 200 MB another 100 MB; mapping them costs no time that can be measured.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 256 << 10)


def keep_what_is_freed() -> None:
    """Has arrays up to 32 MB lie in the heap, which keeps what they leave for those that come next, up to 64 MB.

    A network that transformers builds makes new arrays in each step; mapped anew, and set to zero by the system, they
    took half of the time of a prompt.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MOST_IN_HEAP)
        library.mallopt(_TRIM_THRESHOLD, 2 * _MOST_IN_HEAP)


def give_back() -> None:
    """Gives the system back what dead objects held: glibc keeps it in its heap, for arrays that may never come."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
