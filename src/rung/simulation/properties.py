"""Hold what ``torch.cuda.get_device_properties`` tells of a simulated card."""

from __future__ import annotations

import types
import uuid
from typing import Any

from rung.simulation.simulation import Card

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
    """Return what ``get_device_properties`` tells; figures that the catalogue does not have are left out."""
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
