"""The processor as the one card of ``torch.cuda``: what it is, and what it answers."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from rung.core.text import size
from rung.core.types import Device
from rung.hardware.families import cpu
from rung.simulation.dispatch.patches import Patches
from rung.simulation.queries import Cuda
from rung.simulation.simulation import Card, World

_STATUS, _RESET = "/proc/self/status", "/proc/self/clear_refs"


def resident() -> int:
    """Bytes that are resident now."""
    return _status("VmRSS:") or peak()


def peak() -> int:
    """The most bytes that were resident so far, or since ``reset_peak``; 0 where nobody knows."""
    return _status("VmHWM:") or _by_resource()


def reset_peak() -> None:
    """Has the peak begin at what is resident now, where the system can."""
    with contextlib.suppress(OSError), open(_RESET, "w", encoding="ascii") as file:
        file.write("5")


def available() -> int | None:
    """Bytes that programs may still take of the machine, swap apart; None where it does not say."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")), None)
    return None


def swap() -> int:
    """Bytes of swap that are free; 0 where the machine does not say."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("SwapFree:")), 0)
    return 0


def _status(name: str) -> int:
    with contextlib.suppress(OSError), open(_STATUS, encoding="utf-8", errors="replace") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name)), 0)
    return 0


def _by_resource() -> int:
    try:
        import resource
    except ImportError:
        return 0
    import sys

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


#: The compute capability that is answered: the first with bfloat16 and TF32, and without float8, which processors lack.
CAPABILITY = (8, 0)
#: The CUDA that the program is told of where torch was built without.
CUDA_VERSION = "12.6"


class Processor(Card):
    """The processor: it takes its memory from this machine, and its random state is torch's own."""

    def __init__(self, world: World, device: Device, index: int) -> None:
        super().__init__(world, device, index)
        self.allocate = lambda size: None  # type: ignore[assignment,return-value]
        self.release = lambda block: None
        self.random = torch.default_generator


class Machine(World):
    """One processor, called ``cuda:0``. ``say`` takes a sentence for the end of the run."""

    plain = True
    card_class = Processor

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__([processor()])
        self._say = say

    def no_such_device(self, index: int) -> Exception:
        """torch's own error for a second card; says what there is."""
        self._say(
            f"the program asked for cuda:{index}, and there is one, cuda:0, which is this processor: "
            "let it use one GPU (an option of its own, or CUDA_VISIBLE_DEVICES=0)"
        )
        return super().no_such_device(index)


def processor() -> Device:
    """This machine's processor as a CUDA device."""
    found = cpu.identify()
    arch = f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"
    software = {"torch": torch.__version__, "cuda": torch.version.cuda or CUDA_VERSION}
    return replace(found, id="cuda:0", kind="cuda", arch=arch, software=found.software | software)


class Answers(Cuda):
    """``torch.cuda`` where it is the processor. Memory is that of the process, beyond what it held at first."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._first = resident()

    def memory_allocated(self, device: Any = None) -> int:
        self._world.card_of(device)
        return max(resident() - self._first, 0)

    def max_memory_allocated(self, device: Any = None) -> int:
        self._world.card_of(device)
        return max(peak() - self._first, 0)

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = self._world.card_of(device).device.memory
        free = available()
        return min(total, free if free is not None else total - resident()), total

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        now, most = self.memory_allocated(device), self.max_memory_allocated(device)
        found = {"num_alloc_retries": 0, "num_ooms": 0}
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            found[f"{name}.all.current"], found[f"{name}.all.peak"] = now, most
        return found

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        now, most = self.memory_allocated(device), self.max_memory_allocated(device)
        return f"this process on {self.get_device_name(device)}, bytes: now {now:,}, peak {most:,}"

    def memory_snapshot(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return []

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        reset_peak()

    reset_max_memory_allocated = reset_peak_memory_stats

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Nothing is counted here."""

    def empty_cache(self) -> None:
        """Nothing is kept here that torch has freed."""

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        self._world.card_of(device)
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        return 1.0

    def utilization(self, device: Any = None) -> int:
        """How busy the processor is, in percent: the load of the last minute over its cores."""
        self._world.card_of(device)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return min(round(100 * load / (os.cpu_count() or 1)), 100)

    def memory_usage(self, device: Any = None) -> int:
        """Taken memory in percent; a card says for how long it was read or written."""
        free, total = self.mem_get_info(device)
        return round(100 * (total - free) / total)

    def is_initialized(self) -> bool:
        return True

    def get_device_properties(self, device: Any = None) -> Any:
        found = super().get_device_properties(device)
        found.multi_processor_count = os.cpu_count() or 1
        found.is_integrated = True
        return found

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def cudart(self) -> Any:
        """Return the functions of the CUDA runtime that programs call: the switch of the profiler."""
        return types.SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0)

    def get_sync_debug_mode(self) -> int:
        return 0

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        """Nothing waits here that could be warned of."""


#: How the allocator says it, with the bytes that were asked for.
_REFUSED = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d+) bytes")
#: Tensors from this size on are compared with what is free: less is not worth the question.
_LARGE = 64 << 20
_SIZED = ("empty", "zeros", "ones", "full", "rand", "randn")


def install(makers: Iterable[tuple[Any, str]], patches: Patches) -> None:
    """Puts it in force; ``makers`` are the (module, name) of the functions that make tensors."""
    for owner, name in makers:
        turned = _turned(getattr(owner, name))
        patches.set(owner, name, _sized(turned) if owner is torch and name in _SIZED else turned)
    for owner, names in (
        (torch.Tensor, ("to", "cuda", "type", "float", "double", "clone", "contiguous", "backward")),
        (torch.nn.Module, ("__call__", "_apply")),
        (torch.autograd, ("backward", "grad")),
    ):
        for name in names:
            patches.set(owner, name, _turned(getattr(owner, name)))
    patches.set(torch.optim.Optimizer, "profile_hook_step", staticmethod(_of_step(torch.optim.Optimizer)))


def refused(requested: int) -> torch.OutOfMemoryError:
    """The error of a card that has no room for so many bytes."""
    free = available() or 0
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {size(requested)}. GPU 0 is this processor: {size(free)} of its "
        "memory is free."
    )


def _turned(real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, whose errors of the allocator are those of a card."""

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return real(*args, **kwargs)
        except RuntimeError as error:
            if type(error) is RuntimeError and (found := _REFUSED.search(str(error))):
                raise refused(int(found[1])) from error
            raise

    return call


def _sized(real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, which makes no tensor larger than what is free."""

    @functools.wraps(real)
    def make(*args: Any, **kwargs: Any) -> Any:
        size = _bytes(args, kwargs)
        if size >= _LARGE and (free := available()) is not None and size > free + swap():
            raise refused(size)
        return real(*args, **kwargs)

    return make


def _bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many bytes a tensor of these arguments takes; 0 where they say no size."""
    shape = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list)) else args)
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not all(isinstance(length, int) for length in shape) or getattr(kwargs.get("device"), "type", "") == "meta":
        return 0
    return 0 if kwargs.get("device") == "meta" else math.prod(shape) * int(dtype.itemsize)


def _of_step(optimizer: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return a wrapper for the ``step`` of each optimizer."""
    wrap = optimizer.profile_hook_step

    def wrapped(step: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = wrap(_turned(step))
        return found

    return wrapped
