"""A token through WebGPU: dispatches, bytes that are read beside those of the file, CPU time of recording, and
tokens that the device chooses beside those chosen from logits.

    python benchmarks/webgpu.py [MODEL] [--device webgpu:0]

The bars: at most 5 dispatches a layer and 4 more, 1.02 times the packed bytes, 1 us of CPU a dispatch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import rung
from rung.engine.decoder import Decoder
from rung.engine.scheduling import scheduler
from rung.kernels.webgpu.gpu import gpu

#: The prompt, times that a token's kernels are recorded, and answers of each way.
PROMPT, TIMES, TURNS = "The model runs on a device with", 50, 3


def token_work(model: Any, device: Any) -> list[Any]:
    """Return the kernels of the last token of an answer."""
    works: list[list[Any]] = []
    plain = device.run
    device.run = lambda work, rows=1: (works.append(list(work)), plain(work, rows))
    try:
        with looking_ahead(0):
            "".join(model.generate(PROMPT, max_tokens=3, temperature=0, raw=True))
    finally:
        device.run = plain
    return works[-1]


@contextmanager
def looking_ahead(seconds: float | None) -> Iterator[None]:
    """Let devices choose tokens for so many seconds; None: from their logits."""
    with mock.patch.object(scheduler, "LOOK_AHEAD", seconds or 0):
        if seconds is not None:
            yield
            return
        with mock.patch.object(Decoder, "look_ahead", 0):
            yield


def tokens(model: Any, device: Any) -> None:
    """Print what a token takes from logits, chosen on the device, and sixteen at a time, in turns."""
    ways = {"from logits": None, "on the device": 0.0, "16 at a time": 1e9}
    found: dict[str, list[float]] = {name: [] for name in ways}
    crossed, answers = {}, set()
    for _ in range(TURNS):
        for name, seconds in ways.items():
            with looking_ahead(seconds):
                before = device.crossed
                answer = model.generate(PROMPT, max_tokens=33, temperature=0, raw=True)
                answers.add("".join(answer))
                count = len(answer.result["tokens"])
                found[name].append(answer.result["decode_tokens_per_second"])
                crossed[name] = (device.crossed - before) / count
    for name, rates in found.items():
        ratio = statistics.median(a / b for a, b in zip(rates, found["from logits"], strict=True))
        print(f"tokens {name}: {statistics.median(rates):.1f} a second ({ratio:.2f}), {crossed[name]:,.0f} bytes each")
    print(f"the same answer: {'yes' if len(answers) == 1 else 'no'}")


def recording_seconds(device: Any, work: list[Any]) -> float:
    """Return the least seconds in which the kernels become a command buffer."""
    least = float("inf")
    for _ in range(TIMES):
        begin = time.perf_counter()
        device.record(work, 1)
        least = min(least, time.perf_counter() - begin)
    return least


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--device", default="webgpu:0")
    options = parser.parse_args()
    model = rung.load(options.model, device=options.device, context=256)
    device = gpu(options.device)
    work = token_work(model, device)
    layers = len(model.card.decoder.layers)
    stored = sum(tensor.bytes for tensor in model.card.tensors if len(tensor.shape) > 1)
    packed = model.plan.placements[0].memory.weights
    seconds = recording_seconds(device, work)
    print(f"{options.model} on {device.adapter.info['device']}: {layers} layers")
    print(f"dispatches a token: {len(work)}, {(len(work) - 4) / layers:.1f} a layer and 4 (bar: 5 and 4)")
    print(f"weights: {packed / 1e6:.1f} MB packed, {stored / 1e6:.1f} MB in the file, ratio {packed / stored:.3f}")
    print(f"recording: {1e6 * seconds / len(work):.2f} us of CPU a dispatch (bar: 1)")
    tokens(model, device)


if __name__ == "__main__":
    main()
