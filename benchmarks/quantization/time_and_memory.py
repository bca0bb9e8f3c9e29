"""Measure how long ``rung quantize --size`` takes from the start to the verdict, and the memory that it takes.

    python benchmarks/quantization/time_and_memory.py ORIGINAL.gguf [--bits 5]

The statistics are made anew in a cache of their own; compiled kernels are there already. The bars: 3 minutes for 135M
weights on two cores, and a peak of the statistics, the largest layer in f32 and 700 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mixed_texts import mixed

from rung.core.settings import CACHE
from rung.models.lookup import find_card

_CHARACTERS, _BAR_SECONDS, _BAR_BYTES, _WEIGHTS = 30_000, 180.0, 700 << 20, 135e6


def main() -> None:
    """Print seconds and bytes, each with its bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("original")
    parser.add_argument("--bits", type=float, default=5.0, help="bits for each weight of the file")
    options = parser.parse_args()
    card = find_card(options.original, offline=True)
    with tempfile.TemporaryDirectory(dir=Path(options.original).parent) as temporary:
        text, cache = Path(temporary, "text.txt"), Path(temporary, "cache")
        text.write_text(mixed("calibration", _CHARACTERS))
        cache.mkdir()
        for kept in ("kernels", "proofs"):
            if (CACHE.read() / kept).exists():
                shutil.copytree(CACHE.read() / kept, cache / kept)
        size = round(card.parameters * options.bits / 8)
        command = [sys.executable, "-m", "rung", "quantize", options.original, str(Path(temporary, "out.gguf"))]
        command += ["--size", str(size), "--text", str(text), "--json"]
        began = time.monotonic()
        done = subprocess.run(command, env={**os.environ, "RUNG_CACHE": str(cache)}, capture_output=True, text=True)
        took = time.monotonic() - began
        if done.returncode:
            raise SystemExit(done.stderr[-1500:])
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        statistics = sum(path.stat().st_size for path in (cache / "statistics").rglob("*.npy"))
    layers: dict[str, int] = {}
    for tensor in card.tensors:
        layer = tensor.role.rpartition(".")[0] or tensor.role
        rows, columns = (1, *tensor.shape)[-2:]
        layers[layer] = layers.get(layer, 0) + 4 * rows * columns
    said, bar = json.loads(done.stdout), statistics + max(layers.values()) + _BAR_BYTES
    goal = _BAR_SECONDS * max(1.0, card.parameters / _WEIGHTS)
    print(f"{took:.0f} s from the start to the verdict (bar {goal:.0f} s), of them {said['seconds']:.0f} s of writing")
    print(f"peak {peak / 2**20:.0f} MB (bar {bar / 2**20:.0f} MB: statistics {statistics / 2**20:.0f} MB)")
    print(f"expected KL {said['expected_kl']:.5f}, measured {said['measured']['divergence']:.5f}")


if __name__ == "__main__":
    main()
