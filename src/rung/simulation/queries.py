"""Hold what ``torch.cuda`` answers about the simulated card: each method stands in for the function of its name."""

from __future__ import annotations

import contextlib
import types
import uuid
from typing import Any

import torch

from rung.core.types import Level
from rung.run.torch_private import RAW_STREAM
from rung.simulation.allocator import Block
from rung.simulation.dispatch.patches import Patches
from rung.simulation.simulation import Card, World
from rung.simulation.torch_api import generators, streams
from rung.simulation.torch_api.tensors import install_tensor_types

_KB = 1024
#: Threads and kB of shared memory of a multiprocessor, and kB that a block may ask for, by compute capability (CUDA C++
#: programming guide, technical specifications per compute capability).
_MULTIPROCESSOR = {
    (3, 7): (2048, 112, 48), (5, 0): (2048, 64, 48), (5, 2): (2048, 96, 48), (5, 3): (2048, 64, 48),
    (6, 0): (2048, 64, 48), (6, 1): (2048, 96, 48), (6, 2): (2048, 64, 48), (7, 0): (2048, 96, 96),
    (7, 2): (2048, 96, 96), (7, 5): (1024, 64, 64), (8, 0): (2048, 164, 163), (8, 6): (1536, 100, 99),
    (8, 7): (1536, 164, 163), (8, 9): (1536, 100, 99), (9, 0): (2048, 228, 227), (10, 0): (2048, 228, 227),
    (12, 0): (1536, 100, 99),
}  # fmt: skip


def properties(card: Card) -> Any:
    """Return the result of ``get_device_properties``; figures that the catalog does not have are left out."""
    major, minor = card.capability
    device = card.device
    amd = device.kind == "rocm"
    found: dict[str, Any] = {
        "name": device.name,
        "major": major,
        "minor": minor,
        "total_memory": card.total,
        "is_integrated": False,
        "is_multi_gpu_board": False,
        "warp_size": 64 if amd and device.arch.startswith("gfx9") else 32,
        "uuid": uuid.uuid5(uuid.NAMESPACE_OID, f"{device.name} {card.index}"),
    }
    if amd:
        found["gcnArchName"] = device.arch
    elif (major, minor) in _MULTIPROCESSOR:
        threads, shared, most = _MULTIPROCESSOR[major, minor]
        found["max_threads_per_multi_processor"] = threads
        found["regs_per_multiprocessor"] = (128 if (major, minor) == (3, 7) else 64) * _KB
        found["shared_memory_per_multiprocessor"] = shared * _KB
        found["shared_memory_per_block"] = 48 * _KB
        found["shared_memory_per_block_optin"] = most * _KB
    if "multiprocessors" in device.details:
        found["multi_processor_count"] = int(device.details["multiprocessors"])
    return type("_CudaDeviceProperties", (types.SimpleNamespace,), {})(**found)


class Questions:
    """Hold what ``torch.cuda``, ``torch.xpu`` and ``torch.accelerator`` are asked alike."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.Stream: Any = type("Stream", (streams.Stream,), {"world": world})
        self.Event = streams.Event
        self._began = False

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(self._world.cards)

    def current_device(self) -> int:
        return self._world.card.index

    def set_device(self, device: Any) -> None:
        self._world.local.current = self._world.card_of(device).index

    def init(self) -> None:
        self._began = True

    def _lazy_init(self) -> None:
        self._began = True

    def is_initialized(self) -> bool:
        return self._began or any(card.allocator.stats()["reserved"] for card in self._world.cards)

    def get_device_name(self, device: Any = None) -> str:
        return self._world.card_of(device).device.name

    def synchronize(self, device: Any = None) -> None:
        """Nothing runs later here."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        card = self._world.card_of(device)
        used = card.runtime + card.allocator.stats()["reserved"]
        return max(card.total - used, 0), card.total

    def memory_allocated(self, device: Any = None) -> int:
        return self._world.card_of(device).allocator.stats()["allocated"]

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._world.card_of(device).allocator.stats()["peak_allocated"]

    def memory_reserved(self, device: Any = None) -> int:
        return self._world.card_of(device).allocator.stats()["reserved"]

    def max_memory_reserved(self, device: Any = None) -> int:
        return self._world.card_of(device).allocator.stats()["peak_reserved"]

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        allocator = self._world.card_of(device).allocator
        stats, counts = allocator.stats(), allocator.counts
        found = {"num_alloc_retries": counts["retry"], "num_ooms": counts["out_of_memory"]}
        names = {"allocated_bytes": "allocated", "reserved_bytes": "reserved", "requested_bytes": "requested"}
        for name, counter in (names | {"active": "active", "allocation": "active"}).items():
            found[f"{name}.all.current"], found[f"{name}.all.peak"] = stats[counter], stats[f"peak_{counter}"]
        found["allocation.all.allocated"], found["allocation.all.freed"] = counts["allocation"], counts["free"]
        return found

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        card = self._world.card_of(device)
        stats = card.allocator.stats()
        rows = [f"{name:<10} {stats[name]:>16,} {stats[f'peak_{name}']:>16,}" for name in ("allocated", "reserved")]
        return "\n".join([f"simulated {card.device.name}, bytes: now, peak", *rows])

    def memory_snapshot(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return [_segment(card, blocks) for card in self._world.cards for blocks in card.allocator.segments()]

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self._world.card_of(device).allocator.reset_peaks()

    def reset_max_memory_allocated(self, device: Any = None) -> None:
        self._world.card_of(device).allocator.reset_peaks()

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        self._world.card_of(device).allocator.counts.clear()

    def empty_cache(self) -> None:
        for card in self._world.cards:
            card.allocator.empty_cache()

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        card = self._world.card_of(device)
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        card.allocator.capacity = max(min(int(fraction * card.total), card.total - card.runtime), 0)

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        card = self._world.card_of(device)
        capacity = card.allocator.capacity
        return capacity / card.total if capacity < card.total - card.runtime else 1.0

    def temperature(self, device: Any = None) -> int:
        return self._no_sensor(device, "temperature")

    def power_draw(self, device: Any = None) -> int:
        return self._no_sensor(device, "power draw")

    def clock_rate(self, device: Any = None) -> int:
        return self._no_sensor(device, "clock rate")

    def utilization(self, device: Any = None) -> int:
        return self._no_sensor(device, "utilization")

    def memory_usage(self, device: Any = None) -> int:
        return self._no_sensor(device, "memory usage over time")

    def _no_sensor(self, device: Any, what: str) -> int:
        name = self._world.card_of(device).device.name
        raise RuntimeError(f"{name} is no real card here: it has no driver that measures its {what}")

    def get_allocator_backend(self) -> str:
        return "native"

    def _record_memory_history(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is noted of who allocated."""

    def _snapshot(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"segments": self.memory_snapshot(), "device_traces": [[] for _ in self._world.cards]}

    def manual_seed(self, seed: int) -> None:
        self._world.card.random.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        for card in self._world.cards:
            card.random.manual_seed(int(seed))

    def seed(self) -> None:
        self._world.card.random.seed()

    def seed_all(self) -> None:
        for card in self._world.cards:
            card.random.seed()

    def initial_seed(self) -> int:
        return self._world.card.random.initial_seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self._world.card_of(device).random.get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        self._world.card_of(device).random.set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [card.random.get_state() for card in self._world.cards]

    def set_rng_state_all(self, new_states: Any) -> None:
        for card, state in zip(self._world.cards, new_states, strict=False):
            card.random.set_state(state)

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_stream(self, device: Any = None) -> Any:
        return self.Stream.current or self.Stream.default()

    def default_stream(self, device: Any = None) -> Any:
        return self.Stream.default()

    def set_stream(self, stream: Any) -> None:
        self.Stream.current = stream

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext() if stream is None else stream

    def _exchange_device(self, device: int) -> int:
        """Makes that card the current one, unless it is negative; returns the one before. For ``torch.cuda.device``."""
        before = self._world.local.current
        if device >= 0:
            self.set_device(device)
        return before

    _maybe_exchange_device = _exchange_device


class Cuda(Questions):
    """``torch.cuda``, for NVIDIA and for AMD."""

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self._world.card_of(device).capability

    def get_arch_list(self) -> list[str]:
        built = self._world.card.device.software.get("arch_list", "")
        return built.split() if built else [self._world.card.device.arch.split("-")[0]]

    def get_gencode_flags(self) -> str:
        numbers = [arch.removeprefix("sm_") for arch in self.get_arch_list()]
        return " ".join(f"-gencode compute=compute_{n},code=sm_{n}" for n in numbers)

    def get_device_properties(self, device: Any = None) -> Any:
        return properties(self._world.card_of(device))

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        card = self._world.card
        if card.device.kind == "rocm" or card.capability[0] >= 8:
            return card.cuda_version is None or card.cuda_version >= (11, 0)
        # from torch 2.2 on it counts when a tensor can be made, which says nothing of products
        return including_emulation and card.torch_version >= (2, 2)

    def is_tf32_supported(self) -> bool:
        return self._world.card.device.kind == "cuda" and self._world.card.capability >= (8, 0)

    def is_current_stream_capturing(self) -> bool:
        return self._world.capturing is not None

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        return False

    def ipc_collect(self) -> None:
        """No memory is shared with other processes."""


class Xpu(Questions):
    """``torch.xpu``."""

    def get_device_capability(self, device: Any = None) -> dict[str, Any]:
        return dict(vars(self.get_device_properties()))

    def get_device_properties(self, device: Any = None) -> Any:
        card = self._world.card_of(device)
        f64 = card.device.capability("matmul.f64").level is not Level.ABSENT
        return types.SimpleNamespace(
            name=card.device.name, type="gpu", total_memory=card.total, has_fp16=True, has_fp64=f64
        )

    def is_bf16_supported(self) -> bool:
        return self._world.card.device.capability("matmul.bf16").level is not Level.ABSENT


class Mps:
    """``torch.mps``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queries = Questions(world)
        self.Event = streams.Event
        for name in (
            "synchronize",
            "empty_cache",
            "device_count",
            "get_rng_state",
            "set_rng_state",
            "manual_seed",
            "seed",
        ):
            setattr(self, name, getattr(self._queries, name))

    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def current_allocated_memory(self) -> int:
        return self._queries.memory_allocated()

    def driver_allocated_memory(self) -> int:
        return self._world.card.runtime + self._queries.memory_reserved()

    def recommended_max_memory(self) -> int:
        return self._world.card.total


def _segment(card: Card, parts: list[Block]) -> dict[str, Any]:
    """A segment as ``torch.cuda.memory_snapshot`` tells of it."""
    blocks: list[dict[str, Any]] = [
        {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested,
            "state": "active_allocated" if block.requested else "inactive",
            "frames": [],
        }
        for block in parts
    ]
    used = sum(block.size for block in parts if block.requested)
    return {
        "device": card.index,
        "address": parts[0].address,
        "total_size": sum(block.size for block in parts),
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block.requested for block in parts),
        "stream": 0,
        "segment_type": "small" if parts[0].small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def install(world: World, patches: Patches, cuda: type[Cuda] = Cuda) -> None:
    """Puts the answers in force in the modules of torch; ``cuda`` has those of ``torch.cuda``."""
    if world.type == "mps":
        answers: Any = Mps(world)
        modules: tuple[Any, ...] = (torch.mps, torch.mps.event, torch.backends.mps)
        common: Questions = answers._queries
    else:
        answers = common = cuda(world) if world.type == "cuda" else Xpu(world)
        top = getattr(torch, world.type)
        modules = (top, *(getattr(top, name) for name in ("memory", "random", "streams") if hasattr(top, name)))
    for module in modules:
        for name in (n for n in dir(answers) if not n.startswith("__") and hasattr(module, n)):
            patches.set(module, name, getattr(answers, name))
    patches.set(torch, "Stream", streams.of_any_device(world, torch.Stream, common.Stream, placed=True))
    patches.set(torch, "Event", streams.of_any_device(world, torch.Event, common.Event, placed=False))
    _install_accelerator(world, common, patches)
    for card in world.cards if not world.plain else ():
        card.random = generators.CardGenerator(card)
    if world.type != "mps":
        install_tensor_types(world, patches)
    if world.type == "cuda":
        patches.set(torch.cuda, "default_generators", tuple(card.random for card in world.cards))
        _install_build(world, patches)


def _install_accelerator(world: World, answers: Questions, patches: Patches) -> None:
    there = torch.accelerator
    at = getattr(getattr(torch, world.type), "device", contextlib.nullcontext)
    names = {
        "current_accelerator": lambda check_available=False: torch.device(world.type),
        "current_device_index": answers.current_device,
        "current_device_idx": answers.current_device,
        "set_device_index": answers.set_device,
        "set_device_idx": answers.set_device,
        "get_memory_info": answers.mem_get_info,
        "device_index": lambda device: at(device),  # not the class itself, which others may hold under its own name
    }
    for name in there.__all__:
        found = names.get(name) or getattr(answers, name, None)
        if found is not None:
            patches.set(there, name, found)


#: The cuDNN of PyTorch's own wheels (what they require of nvidia-cudnn) from that torch on, as it says its number.
_CUDNN = {
    (2, 8): 91002, (2, 7): 90501, (2, 4): 90100, (2, 1): 8902, (1, 13): 8500, (1, 12): 8302, (1, 10): 8200,
}  # fmt: skip


def _cudnn(card: Card) -> int:
    if card.cuda_version is not None and card.cuda_version < (11, 0):
        return 7605
    return next((number for since, number in _CUDNN.items() if card.torch_version >= since), 8005)


def _install_build(world: World, patches: Patches) -> None:
    """Set what torch says that it was built for."""
    software = world.card.device.software
    amd = world.card.device.kind == "rocm"
    patches.set(torch.version, "hip", software.get("rocm", "6.4") if amd else None)
    patches.set(torch.version, "cuda", None if amd else software.get("cuda", "12.6"))
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: None if amd else _cudnn(world.card))
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # its kernels are not in this torch
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)
    patches.set(*RAW_STREAM, lambda index: 0)
    marks = dict.fromkeys(("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA"), lambda *_: 0)
    patches.set(torch.cuda.nvtx, "_nvtx", types.SimpleNamespace(**marks))
