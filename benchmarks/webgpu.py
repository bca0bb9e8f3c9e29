"""A token through WebGPU: dispatches, bytes that are read beside those of the file, and CPU time of recording.

    python benchmarks/webgpu.py [MODEL] [--device webgpu:0]

The bars: at most 5 dispatches a layer and 4 more, 1.02 times the packed bytes, 1 us of CPU a dispatch.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import rung
from rung.kernels.webgpu.gpu import gpu

#: Tokens of the prompt, and times that a token's kernels are recorded.
PROMPT, TIMES = "The model runs on a device with", 50


def token_work(model: Any, device: Any) -> list[Any]:
    """Return the kernels of the last token of an answer."""
    seen: list[list[Any]] = []
    plain = device.run
    device.run = lambda work, rows=1: (seen.append(list(work)), plain(work, rows))
    try:
        "".join(model.generate(PROMPT, max_tokens=3, temperature=0, raw=True))
    finally:
        device.run = plain
    return seen[-1]


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
    print(f"dispatches a token: {len(work)}, {(len(work) - 2) / layers:.1f} a layer and 2 (bar: 5 and 4)")
    print(f"weights: {packed / 1e6:.1f} MB packed, {stored / 1e6:.1f} MB in the file, ratio {packed / stored:.3f}")
    print(f"recording: {1e6 * seconds / len(work):.2f} us of CPU a dispatch (bar: 1)")


if __name__ == "__main__":
    main()
