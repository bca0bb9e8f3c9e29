"""Training splats: peak memory and speed beside the plan's, from a thousand to a million splats, and by pixels.

    python benchmarks/splat_memory.py [--cases 1000:400 1000000:400:f32+sh16 36000:400:f32:classic ...] [--steps 14]

Each case SPLATS:SIZE[:FORMAT[:STRATEGY[:VIEWS]]] is a process of its own that trains on pictures of noise, SIZE x SIZE,
beginning with 96 % of the splats that the plan allows and growing to all of them, as large as those of a trained
scene; it also saves, measures a test and draws it, as every run does. Measured is the largest resident size of the
process, with kernels that were compiled before. Also prints how many tiles the splats touch, and nanoseconds of the
median step for each of those: the last lines say how these grow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CASES = (
    *("1000:400", "10000:400", "36000:400", "100000:400", "300000:400", "1000000:400"),
    *("36000:200", "36000:800", "15000:200", "10000:400:f32:mcmc:200", "1000:800:f32:mcmc:300"),
    *("1000:400:f32+sh16", "10000:400:f32+sh16", "36000:400:f32+sh16", "100000:400:f32+sh16", "1000000:400:f32+sh16"),
    *("1000:400:f32:classic", "10000:400:f32:classic", "36000:400:f32:classic", "100000:400:f32:classic"),
    *("1000000:400:f32:classic", "36000:400:f32+sh16:classic"),
)
#: Of the splats that the plan allows, how many there are at the beginning: they grow by a twentieth at the tenth step.
BEGUN = 0.96


class Case(NamedTuple):
    """A case of training: ``views`` are photographs, every fourth of them a test."""

    splats: int
    size: int
    format: str = "f32"
    strategy: str = "mcmc"
    views: int = 4

    @staticmethod
    def of(words: str) -> Case:
        """``1000:400:f32+sh16:classic:8``; what is left out at the end is as above."""
        parts = words.split(":")
        numbers = dict(zip(("splats", "size", "views"), map(int, (*parts[:2], *parts[4:])), strict=False))
        return Case(**numbers, **dict(zip(("format", "strategy"), parts[2:4], strict=False)))


def make(folder: Path, splats: int, size: int, views: int) -> None:
    """Pictures of noise, cameras around the origin, and splats that cover each picture about as in a trained scene."""
    from PIL import Image

    from rung.splats import Cloud, write
    from rung.splats.planning.costs import LAYERS

    rng = np.random.default_rng(0)
    frames = []
    for number in range(views):
        angle = 2 * math.pi * number / views
        turn = np.array([[-math.sin(angle), 0, math.cos(angle)], [0, 1, 0], [-math.cos(angle), 0, -math.sin(angle)]]).T
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = turn, -4 * turn[:, 2] * -1
        name = f"{number}.png"
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(folder / name)
        frames.append({"file_path": name, "transform_matrix": pose.tolist()})
    transforms = {"w": size, "h": size, "fl_x": size, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(transforms), encoding="utf-8")
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


def train(case: Case, steps: int) -> dict[str, Any]:
    """One training in this process: its metrics, and ``median``, the seconds of half of the later steps."""
    from rung.splats.training.run import ProgressListener
    from rung.splats.training.run import train as run
    from rung.splats.training.settings import Settings

    times: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, case.splats, case.size, case.views)
        settings = Settings(
            str(folder),
            steps=max(steps, case.views),  # every photograph is in the cache then
            max_splats=case.splats,
            max_resolution=case.size,
            format=case.format,
            strategy=case.strategy,
            init=str(folder / "start.ply"),
            device="cpu",
            eval_split=4,
        )
        listener = ProgressListener(progress=lambda now: times.append(time.perf_counter()))
        found = run(settings, folder / "out", listener=listener).metrics
    return {**found, "median": statistics.median(np.diff(times)[len(times) // 2 :].tolist())}


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(Case.of(options.cases[0]), options.steps)))
        return
    from rung.splats.planning.costs import Load

    each: dict[float, float] = {}
    for words in options.cases:
        case = Case.of(words)
        call = [sys.executable, __file__, "--one", "--cases", words, "--steps", str(options.steps)]
        done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        plan, peak, second = found["plan"], found["peak_memory_bytes"], found["median"]
        predicted = sum(plan["memory"].values())
        listed = Load(case.splats, case.size**2, 3).listed
        print(
            f"{words}: {found['splats']:,} splats, peak {peak / 2**20:,.0f} MB of {predicted / 2**20:,.0f} planned"
            f" ({peak / predicted:.3f}); {second:.3f} s a step, {1 / plan['steps_per_second']:.3f} planned;"
            f" {listed:,.0f} listed, {1e9 * second / listed:,.0f} ns each",
            flush=True,
        )
        if case == Case(case.splats, 400):
            each[listed] = second
    for (few, short), (many, long) in itertools.pairwise(sorted(each.items())):
        power = math.log(long / short) / math.log(many / few)
        print(f"{few:,.0f} to {many:,.0f} listed: seconds grow as their number to the power of {power:.2f}")


if __name__ == "__main__":
    main()
