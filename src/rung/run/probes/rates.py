"""Measures what a device does in a second: bytes read and matrix operations, by the best of a few short runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rung.run.probes.start import device
from rung.run.probes.values import DTYPES, product

#: Seconds that one run should take to be measured well, and that one figure may take in all.
_RUN, _BUDGET = 0.03, 0.3
_SMALLEST, _LARGEST = 256, 8192


def bandwidth(size: int) -> float:
    """Bytes read per second when ``size`` bytes are summed up, the best of the runs that fit into a second at most."""
    data = torch.ones(size // 4, dtype=torch.float32, device=device())
    return 4 * data.numel() / _best(lambda: data.sum(), 3 * _BUDGET)


def matmul(dtype: str, memory: int) -> float:
    """Operations per second of square products in that dtype (2 for a multiplication and an addition).

    The size doubles until a run is long enough or three matrices would take more than ``memory`` bytes.
    """
    size, rate = _SMALLEST, 0.0
    began = time.perf_counter()
    while True:
        x, w = (torch.randn(size, size, device=device()).to(DTYPES[dtype]) for _ in range(2))
        if dtype == "int8":
            x, w = (torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device()) for _ in range(2))
        seconds = _best(lambda x=x, w=w: product(x, w), _BUDGET / 3)  # type: ignore[misc]
        rate = max(rate, 2.0 * size**3 / seconds)
        size *= 2
        long_enough = seconds > _RUN or time.perf_counter() - began > _BUDGET
        if long_enough or size > _LARGEST or 3 * 4 * size**2 > memory:
            return rate


def _best(work: Callable[[], object], budget: float) -> float:
    """Seconds of the fastest run; the first one warms up and counts only when it alone takes the whole budget."""
    best, spent = float("inf"), 0.0
    for count in range(1000):
        _wait()
        began = time.perf_counter()
        work()
        _wait()
        seconds = time.perf_counter() - began
        spent += seconds
        if count or spent > budget:
            best = min(best, seconds)
        if spent > budget or count >= 20:
            break
    return best


def _wait() -> None:
    kind = device().type
    if kind != "cpu":
        getattr(torch, kind).synchronize()
