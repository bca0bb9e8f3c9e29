"""Encoding and decoding speed of rung's reference codecs beside those of the ``gguf`` package, and the error.

    python benchmarks/formats_bench.py [--format NAME ...] [--rows 1024] [--columns 4096]

Speed is in million weights per second on one thread, the best of three; the error is the signal-to-noise ratio in
dB on Gaussian weights, against the floor that the format promises. Where the ``gguf`` package has no codec: ``-``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
from gguf import quants

from rung import formats
from rung.core.errors import UsageError
from rung.core.types import Format

TURNS = 3


def best(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the fastest turn, and what it returned."""
    taken = []
    for _ in range(TURNS):
        started = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - started)
    return min(taken), result


def peer(name: str, weights: np.ndarray, data: np.ndarray | None) -> tuple[float | None, float | None]:
    """Seconds that the gguf package takes to encode and to decode; None where it cannot."""
    kind = gguf.GGMLQuantizationType.__members__.get(name.upper())
    if kind is None:
        return None, None
    try:
        encoding, _ = best(lambda: quants.quantize(weights, kind))
    except NotImplementedError:
        encoding = None
    if kind.name in ("F32", "F16"):  # a cast or nothing at all: not a codec
        return None, None
    if data is None:
        return encoding, None
    decoding, _ = best(lambda: quants.dequantize(data, kind))
    return encoding, decoding


def random_blocks(fmt: Format, shape: tuple[int, int]) -> formats.Encoded:
    """Blocks of a format that is only decoded; bytes below 64 keep every scale finite."""
    data = np.random.default_rng(0).integers(0, 64, (shape[0], fmt.bytes(shape) // shape[0]), np.uint8)
    return formats.Encoded(fmt, shape, {"data": data})


def noise_ratio(weights: np.ndarray, decoded: np.ndarray) -> str:
    """Signal-to-noise ratio in dB."""
    noise = float(np.square(weights - decoded, dtype=np.float64).sum())
    power = float(np.square(weights, dtype=np.float64).sum())
    return f"{10 * np.log10(power / noise):.1f}" if noise else "exact"


def row(name: str, weights: np.ndarray) -> str:
    """One format as a line of Markdown; a format that only decodes is given random blocks."""
    fmt = formats.get(name)
    million = weights.size / 1e6
    encoding: float | None = None
    try:
        encoding, encoded = best(lambda: formats.encode(weights, fmt))
    except UsageError:
        encoded = random_blocks(fmt, (weights.shape[0], weights.shape[1]))
    decoding, decoded = best(lambda: formats.decode(encoded))
    ratio = noise_ratio(weights, decoded) if encoding else "-"
    data = encoded.parts["data"] if set(encoded.parts) == {"data"} else None
    peer_encoding, peer_decoding = peer(name, weights, data)

    def speed(seconds: float | None) -> str:
        return f"{million / seconds:.1f}" if seconds else "-"

    return (
        f"| {name} | {speed(encoding)} | {speed(peer_encoding)} | {speed(decoding)} | {speed(peer_decoding)} "
        f"| {ratio} | {fmt.floor_db:.1f} |"
    )


def main() -> None:
    """Print one row per format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", nargs="+", default=list(formats.FORMATS))
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=4096)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((arguments.rows, arguments.columns)) * 0.02).astype(np.float32)
    print("| format | encode M/s | gguf | decode M/s | gguf | SQNR dB | floor dB |\n|---|---|---|---|---|---|---|")
    for name in arguments.format:
        print(row(name, weights), flush=True)


if __name__ == "__main__":
    main()
