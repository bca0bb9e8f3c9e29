"""Forward and backward of splats on this CPU: rung's compiled tiles beside plain torch tiles, alternating.

    python benchmarks/splats.py [--rounds 5]

Means N(0, 0.6^2) at depth 3.5, scales U(0.005, 0.025), opacities U(0.1, 0.9), harmonics of degree 3, f = 0.9 W.
Projection is part of it. Prints the best and the median second of each, and the ratio of the medians. Then the same
splats, from a thousand to a million, in one picture, and pictures of 200 to 1600 pixels of the same splats: how seconds
grow with the splats that tiles list.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time

import torch

from rung.ops.rasterize import LADDER, TILE, Camera, Splats
from rung.splats import rasterization  # noqa: F401  configures the kernels' cache as a program would

#: Splats and size of the picture: more splats, then more pixels.
GROWING = tuple((count, 400) for count in (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000))
WIDER = tuple((100_000, size) for size in (200, 400, 800, 1600))
CASES = ((10_000, 256, 0.05), (50_000, 512, 0.4), (100_000, 800, 1.1))


def scene(count: int) -> Splats:
    """The splats of the benchmark."""
    generator = torch.Generator().manual_seed(0)
    built = Splats(
        torch.randn(count, 3, generator=generator) * 0.6 + torch.tensor([0.0, 0.0, 3.5]),
        torch.randn(count, 4, generator=generator),
        torch.rand(count, 3, generator=generator) * 0.02 + 0.005,
        torch.rand(count, generator=generator) * 0.8 + 0.1,
        torch.randn(count, 16, 3, generator=generator) * 0.3,
    )
    return Splats(*(tensor.requires_grad_() for tensor in built))


def seconds(rung: str, splats: Splats, camera: Camera) -> float:
    """One picture and the gradients of every splat."""
    implementation = LADDER.rung(rung).load()
    start = time.perf_counter()
    implementation.apply(splats, torch.eye(4), camera).color.square().mean().backward()
    taken = time.perf_counter() - start
    for tensor in splats:
        tensor.grad = None
    return taken


def listed(splats: Splats, camera: Camera) -> int:
    """How many splats all tiles list."""
    with torch.no_grad():
        picture = LADDER.rung("numba.tile").load().apply(splats, torch.eye(4), camera)
    edge = torch.tensor([-(-camera.width // TILE), -(-camera.height // TILE)])
    low = ((picture.means - picture.radii) / TILE).floor().clamp_min(0)
    high = torch.minimum(((picture.means + picture.radii) / TILE).ceil(), edge)
    return int(((high - low).clamp_min(0) * (picture.radii > 0)).prod(-1).sum())


def grow(cases: tuple[tuple[int, int], ...], rounds: int) -> None:
    """Prints seconds and listed splats of each case, and the power with which seconds grow."""
    found = []
    for count, size in cases:
        splats, camera = scene(count), Camera(size, size, 0.9 * size, 0.9 * size, size / 2, size / 2, 3)
        many = listed(splats, camera)
        found.append((many, statistics.median(seconds("numba.tile", splats, camera) for _ in range(rounds))))
        print(f"{count:,} splats, {size} x {size}: {many:,} listed, {found[-1][1]:.4f} s")
    for (few, short), (many, long) in itertools.pairwise(found):
        power = math.log(long / short) / math.log(many / few)
        print(f"{few:,} to {many:,} listed: seconds grow as their number to the power of {power:.2f}")


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{torch.get_num_threads()} threads")
    for count, size, bar in CASES:
        splats, camera = scene(count), Camera(size, size, 0.9 * size, 0.9 * size, size / 2, size / 2, 3)
        taken: dict[str, list[float]] = {"numba.tile": [], "torch.tile": []}
        seconds("numba.tile", splats, camera)  # compiles
        for _ in range(rounds):
            for name, found in taken.items():
                if name == "numba.tile" or len(found) < 2:  # the other one takes its time
                    found.append(seconds(name, splats, camera))
        ours, theirs = (statistics.median(found) for found in taken.values())
        print(
            f"{count} splats, {size} x {size}: {min(taken['numba.tile']):.3f} s, median {ours:.3f} (bar {bar});"
            f" torch tiles {theirs:.2f} s, {theirs / ours:.0f} x"
        )
    grow(GROWING, rounds)
    grow(WIDER, rounds)


if __name__ == "__main__":
    main()
