"""A model whose layers a device of WebGPU and the processor share, compared with the same on each of them alone.

    python benchmarks/webgpu_segments.py [MODEL] [--device webgpu:0] [--share 0.5] [--tokens 24]

Prints the placements, the divergence of logits of a text as a prompt, whether greedy tokens of four prompts at once
are the same, kernels and bytes over the bus of a token, and tokens a second (which say nothing of a card where
the device is Mesa's software adapter).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import rung
from rung.kernels.webgpu.gpu import gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))
import references

TEXT = "The history of the city begins with a small settlement on the river, which traders found in a hard winter. " * 8
PROMPTS = ("Why is the sky blue?", "Name three rivers.", "What is a plan?", "Memory is")


def load(model: str, device: str, share: float | None) -> Any:
    """Load a model; with so large a ``share`` of its weights and cache on the device."""
    if share is None:
        return rung.load(model, device=device, context=512)
    use = load(model, device, None).plan.placements[0].memory
    budget = use.most - round((1 - share) * (use.weights + use.kv_cache))
    return rung.load(model, device=device, context=512, memory={device: budget})


def answers(model: Any, tokens: int) -> tuple[list[str], float]:
    """Return greedy answers to all prompts, computed together, and the tokens a second of all of them."""
    begun = time.perf_counter()
    options = [{"max_tokens": tokens, "temperature": 0}] * len(PROMPTS)
    found = list(model.generate_many(PROMPTS, options, progress=False))
    count = sum(len(each.tokens) for each in found)
    return [each.text for each in found], count / (time.perf_counter() - begun)


def token(model: Any, device: str) -> str:
    """Return the kernels of the last token of an answer that is alone, and the bytes that crossed the bus for it."""
    there, counts = gpu(device), []
    plain = there.run

    def run(work: Any, rows: int = 1) -> None:
        counts.append((len(work), there.crossed))
        plain(work, rows)

    there.run = run  # type: ignore[method-assign]
    try:
        "".join(model.generate(PROMPTS[0], max_tokens=4, temperature=0, seed=1, logprobs=True))
    finally:
        there.run = plain  # type: ignore[method-assign]
    return f"{counts[-1][0]} kernels, {counts[-1][1] - counts[-2][1]:,} bytes over the bus"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--device", default="webgpu:0")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    ways = {"shared": (options.device, options.share), "alone": (options.device, None), "cpu": ("cpu", None)}
    logits, texts = {}, {}
    for name, way in ways.items():
        model = load(options.model, *way)
        ids = model.tokenizer.encode(TEXT)[:160]
        logits[name] = np.asarray(model.logits(ids))
        texts[name], rate = answers(model, options.tokens)
        placed = ", ".join(f"{each.device} {each.first}-{each.last}" for each in model.plan.placements)
        crossed = "" if name == "cpu" else f"; a token: {token(model, options.device)}"
        print(f"{name}: {placed}; {rate:.1f} tokens/s of {len(PROMPTS)} answers{crossed}")
    for one, other in (("alone", "shared"), ("cpu", "shared"), ("cpu", "alone")):
        divergence = references.agreement(logits[one], logits[other]).divergence
        same = sum(map(str.__eq__, texts[one], texts[other]))
        print(f"{other} from {one}: {divergence:.2e} nats, {same} of {len(PROMPTS)} answers are the same")


if __name__ == "__main__":
    main()
