"""Training splats: peak memory and speed beside the plan's, from a thousand to a million splats, and by pixels.

    python benchmarks/splat_memory.py [--cases 1000:400 1000000:400 ...] [--steps 24]

Each case SPLATS:SIZE is a process of its own that trains on pictures of noise, SIZE x SIZE, beginning with nine tenths
of the splats that the plan allows and growing to all of them, as large as those of a trained scene; it also saves,
measures a test and draws it, as every run does. Measured is the largest resident size of the process, with kernels
that were compiled before. Also prints how many tiles the splats touch, and nanoseconds for each of those: the last
lines say how these grow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CASES = ("1000:400", "10000:400", "36000:400", "100000:400", "300000:400", "1000000:400", "36000:200", "36000:800")
VIEWS = 4


#: Of the splats that the plan allows, how many there are at the beginning.
BEGUN = 0.9


def make(folder: Path, splats: int, size: int) -> None:
    """Pictures of noise, cameras around the origin, and splats that cover each picture about as in a trained scene."""
    from PIL import Image

    from rung.planning.splat_costs import LAYERS
    from rung.splats import Cloud, write

    rng = np.random.default_rng(0)
    frames = []
    for number in range(VIEWS):
        angle = 2 * math.pi * number / VIEWS
        turn = np.array([[-math.sin(angle), 0, math.cos(angle)], [0, 1, 0], [-math.cos(angle), 0, -math.sin(angle)]]).T
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = turn, -4 * turn[:, 2] * -1
        name = f"{number}.png"
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(folder / name)
        frames.append({"file_path": name, "transform_matrix": pose.tolist()})
    held = {"w": size, "h": size, "fl_x": size, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(held), encoding="utf-8")
    # reach of 3.33 sigma in pixels, at a distance of 4 with a focal length of ``size``
    sigma = math.sqrt(LAYERS * size * size / (math.pi * splats)) / 3.33 * 4 / size
    splats = round(BEGUN * splats)
    cloud = Cloud(
        rng.uniform(-1.5, 1.5, (splats, 3)).astype(np.float32),
        rng.standard_normal((splats, 4)).astype(np.float32),
        np.log(np.full((splats, 3), sigma) * rng.uniform(0.6, 1.4, (splats, 3))).astype(np.float32),
        rng.uniform(-3, 2, splats).astype(np.float32),
        (rng.standard_normal((splats, 16, 3)) * 0.1).astype(np.float32),
    )
    write(folder / "start.ply", cloud)


def case(splats: int, size: int, steps: int) -> dict[str, Any]:
    """One training in this process."""
    from rung.splats.training.run import train
    from rung.splats.training.settings import Settings

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, splats, size)
        settings = Settings(
            str(folder),
            steps=steps,
            max_splats=splats,
            max_resolution=size,
            init=str(folder / "start.ply"),
            device="cpu",
            eval_split=VIEWS,
        )
        return train(settings, folder / "out").metrics


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    pairs = [tuple(map(int, text.split(":"))) for text in asked.cases]
    if asked.one:
        print(json.dumps(case(*pairs[0], asked.steps)))
        return
    from rung.planning.splat_costs import Load

    each: list[tuple[float, float]] = []
    for splats, size in pairs:
        words = [sys.executable, __file__, "--one", "--cases", f"{splats}:{size}", "--steps", str(asked.steps)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        plan, peak = found["plan"], found["peak_memory_bytes"]
        use = plan["memory"]
        predicted = sum(value for name, value in use.items())
        second, listed = found["seconds"] / found["steps"], Load(splats, size * size, 3).listed
        print(
            f"{splats:>9,} splats {size} x {size}: peak {peak / 2**20:,.0f} MB of {predicted / 2**20:,.0f} planned"
            f" ({peak / predicted:.3f}); {second:.3f} s a step, {1 / plan['steps_per_second']:.3f} planned;"
            f" {listed:,.0f} listed, {1e9 * second / listed:,.0f} ns each",
            flush=True,
        )
        each.append((listed, second))
    for (few, short), (many, long) in itertools.pairwise(sorted(set(each))):
        power = math.log(long / short) / math.log(many / few)
        print(f"{few:,.0f} to {many:,.0f} listed: seconds grow as their number to the power of {power:.2f}")


if __name__ == "__main__":
    main()
