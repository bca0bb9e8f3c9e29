"""How much of the read bandwidth products reach, beside torch and bitsandbytes in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.accept.check import Check, Target, share

from rung.ops.proof import weights
from rung.run.binding import Binder
from rung.run.journal import Journal
from rung.run.torch_device import torch_name

ORDER, SECONDS = 5, 480
_FORMATS = ("q4_0", "q8_0", "q4_k", "q6_k", "nf4", "int8")
_ROWS = (1, 2, 8, 16)
#: Shares of the read bandwidth that one row shall reach on a card.
_BARS = {"q4_0": 0.7, "q8_0": 0.7, "q4_k": 0.7, "nf4": 0.6}
_TURNS = 5


def run(target: Target) -> Iterator[Check]:
    """Time a product of each format at few rows, over weights that no cache holds."""
    import torch

    device = torch.device(torch_name(target.device.id))
    out, columns = (512, 1024) if target.small else (4096, 4096)
    copies = 2 if target.small else 16
    plain = [torch.randn(out, columns, device=device).to(torch.bfloat16) for _ in range(copies)]
    for name in _FORMATS:
        encoded = weights(name, out, columns)
        binder = Binder(target.device, Journal(), threads=int(target.device.details.get("cores", 1)))
        linears = [binder.linear(encoded) for _ in range(copies)]
        for rows in _ROWS[:2] if target.small else _ROWS:
            x = torch.randn(rows, columns, device=device)
            ours, theirs = _in_turns(
                lambda linears=linears, x=x: [linear(x) for linear in linears],
                lambda x=x: [x.to(torch.bfloat16) @ weight.T for weight in plain],
                device,
            )
            rate = encoded.nbytes * copies / ours
            facts = {
                "seconds": ours / copies,
                "bytes_per_second": rate,
                "share_of_bandwidth": share(rate, target.device.bandwidth or 0),
                "of_torch_bf16": share(theirs, ours),
            }
            bar = _BARS.get(name) if rows == 1 and not target.is_cpu and not target.small else None
            yield Check(f"{name}, {rows} rows", None if bar is None else facts["share_of_bandwidth"] >= bar, facts)


def _in_turns(ours: Callable[[], Any], theirs: Callable[[], Any], device: Any) -> tuple[float, float]:
    """Return the median seconds of both, which take turns."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(_TURNS + 1):
        for call, seconds in zip((ours, theirs), taken, strict=True):
            _wait(device)
            begun = time.perf_counter()
            call()
            _wait(device)
            if turn:
                seconds.append(time.perf_counter() - begun)
    return statistics.median(taken[0]), statistics.median(taken[1])


def _wait(device: Any) -> None:
    import torch

    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
