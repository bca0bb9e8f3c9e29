"""Training splats on thousands of photographs within a memory budget: its peak, and when the first step is done.

    python benchmarks/splat_photographs.py [--number 7000 --memory 8GB --steps 200 --max-resolution 1600]

Writes that many JPEGs of 1600 x 1200 with a COLMAP model into a temporary folder (about 260 kB each, ``--scene`` keeps
them), runs ``rung splat train`` there, and prints seconds from its start to the first step, the largest resident size
as the kernel counts it, and how fast it was.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

WIDTH, HEIGHT, FOCAL, POINTS, VISIBLE = 1600, 1200, 1400.0, 50_000, 200
#: Pictures that are drawn, and shifted in other light encoded; files are those, each with a number of its own in it.
DRAWN, ENCODED = 8, 64


def drawn(rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """[HEIGHT, WIDTH, 3]: soft colors, some edges, a little noise."""
    soft = rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(soft).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
    for _ in range(200):
        left, top = rng.integers(WIDTH), rng.integers(HEIGHT)
        picture[top : top + rng.integers(10, 200), left : left + rng.integers(10, 200)] += rng.integers(-60, 60, 3)
    picture += rng.integers(-4, 5, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def make(folder: Path, number: int) -> None:
    """Cameras on a ring of three heights that look at points around the middle."""
    rng = np.random.default_rng(0)
    pictures = [drawn(rng) for _ in range(DRAWN)]
    encoded = []
    for index in range(min(ENCODED, number)):
        changed = np.roll(pictures[index % DRAWN], (index * 7, index * 13), (0, 1)) // 8 * (6 + index % 3)
        buffer = io.BytesIO()
        Image.fromarray(changed).save(buffer, "JPEG", quality=80)
        encoded.append(buffer.getvalue())
    (folder / "images").mkdir(parents=True)
    sparse = folder / "sparse" / "0"
    sparse.mkdir(parents=True)
    cameras = struct.pack("<QIiQQ4d", 1, 1, 1, WIDTH, HEIGHT, FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2)
    (sparse / "cameras.bin").write_bytes(cameras)
    with (sparse / "images.bin").open("wb") as file:
        file.write(struct.pack("<Q", number))
        for index in range(number):
            name = f"{index:05d}.jpg"
            start, rest = encoded[index % ENCODED][:2], encoded[index % ENCODED][2:]  # a comment between the two
            mark = b"\xff\xfe" + struct.pack(">HI", 6, index)
            (folder / "images" / name).write_bytes(start + mark + rest)
            # a turn about the upright axis by the angle, then 4 away from the middle
            angle = 2 * math.pi * index / number * 3
            turn = (math.cos(angle / 2), 0.0, math.sin(angle / 2), 0.0)
            file.write(struct.pack("<I7dI", index + 1, *turn, 0.0, 0.3 * (index % 3 - 1), 4.0, 1))
            file.write(name.encode() + b"\0" + struct.pack("<Q", VISIBLE))
            marks = np.zeros(VISIBLE, [("x", "<f8"), ("y", "<f8"), ("point", "<i8")])
            marks["point"] = rng.integers(1, POINTS, VISIBLE)
            file.write(marks.tobytes())
    points = np.zeros(POINTS, [("id", "<u8"), ("at", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("track", "<u8")])
    points["id"], points["at"] = np.arange(1, POINTS + 1), rng.standard_normal((POINTS, 3)) * 0.7
    points["rgb"] = rng.integers(0, 255, (POINTS, 3))
    (sparse / "points3D.bin").write_bytes(struct.pack("<Q", POINTS) + points.tobytes())


def train(scene: Path, out: Path, memory: str, steps: int, more: list[str]) -> str:
    """The command; what was measured."""
    call = [sys.executable, "-m", "rung", "splat", "train", str(scene), "--out", str(out), "--memory", memory]
    begin, first = time.monotonic(), math.nan
    with subprocess.Popen([*call, "--steps", str(steps), *more], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 1 "):
                first = time.monotonic() - begin
            print(line, end="", flush=True)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    found = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return (
        f"first step after {first:.1f} s; peak {used.ru_maxrss / 1e6:.2f} GB of {memory}; {found['width']} x "
        f"{found['height']}, {found['splats']:,} splats, {found['steps'] / found['seconds']:.2f} steps/s"
    )


def main() -> None:
    """Prints a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=7000)
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--max-resolution", type=int)
    parser.add_argument("--scene", type=Path, help="made here if it is not there, and kept")
    options = parser.parse_args()
    more = ["--max-resolution", str(options.max_resolution)] if options.max_resolution else []
    with tempfile.TemporaryDirectory() as name:
        scene = options.scene or Path(name) / "scene"
        if not scene.exists():
            begin = time.monotonic()
            make(scene, options.number)
            print(f"{options.number:,} photographs made in {time.monotonic() - begin:.0f} s", flush=True)
        print(train(scene, Path(name) / "run", options.memory, options.steps, more))


if __name__ == "__main__":
    main()
