"""A whole model of random weights: a token at several depths, and a prompt, as shares of what the device reads and
multiplies; of 8 billion parameters on a card."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
from benchmarks.accept.check import Check, Target, share

from rung.engine.calibration.models import Size, decoder, plan

ORDER, SECONDS = 6, 480
_FORMATS = ("q4_0", "q8_0", "nf4")
_SMALL = Size(layers=2, hidden=512, wide=1536, kv_heads=2, group=4, head_dim=64, context=512)
_CPU = Size(layers=8, hidden=2048, wide=5632, kv_heads=4, group=8, head_dim=64, context=2304)
_CARD = Size(layers=32, hidden=4096, wide=14336, kv_heads=8, group=4, head_dim=128, context=4608)
_TOKENS, _PROMPT = 16, 256
#: Share of the read bandwidth that a token shall reach on a card.
_BAR = 0.6


def run(target: Target) -> Iterator[Check]:
    """Load, read a prompt, and decode at two depths."""
    size = _SMALL if target.small else _CPU if target.is_cpu else _CARD
    device, threads = target.device, int(target.device.details.get("cores", 1))
    for name in _FORMATS:
        begun = time.perf_counter()
        _, weights = plan(device, threads, name, size)
        stored = sum(group.bytes for group in weights.groups if not group.once)
        with decoder(device, threads, name, size) as model:
            loaded = time.perf_counter() - begun
            ids = np.random.default_rng(0).integers(0, 100, size.context).tolist()
            begun = time.perf_counter()
            model.prefill(ids[:_PROMPT])
            facts = {"load_seconds": loaded, "prompt_tokens_per_second": _PROMPT / (time.perf_counter() - begun)}
            for depth in (_PROMPT, size.context - _TOKENS - 1):
                if depth > model.cache.length:
                    model.prefill(ids[model.cache.length : depth])
                taken = []
                for token in ids[:_TOKENS]:
                    begun = time.perf_counter()
                    model.step(token)
                    taken.append(time.perf_counter() - begun)
                rate = 1 / statistics.median(taken)
                facts |= {
                    f"tokens_per_second_at_{depth}": rate,
                    f"share_of_bandwidth_at_{depth}": share(rate * stored, device.bandwidth or 0),
                }
        judged = not target.small and not target.is_cpu
        yield Check(name, facts[f"share_of_bandwidth_at_{_PROMPT}"] >= _BAR if judged else None, facts)
