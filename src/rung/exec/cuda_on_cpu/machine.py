"""The processor as the one card of ``torch.cuda``: what it is, and what it answers."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from rung.core.types import Device
from rung.exec.cuda_on_cpu import memory
from rung.hardware.families import cpu
from rung.simulation.queries import Cuda
from rung.simulation.simulation import Card, World

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
        self._first = memory.resident()

    def memory_allocated(self, device: Any = None) -> int:
        self._world.card_of(device)
        return max(memory.resident() - self._first, 0)

    def max_memory_allocated(self, device: Any = None) -> int:
        self._world.card_of(device)
        return max(memory.peak() - self._first, 0)

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = self._world.card_of(device).device.memory
        free = memory.available()
        return min(total, free if free is not None else total - memory.resident()), total

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
        memory.reset_peak()

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
