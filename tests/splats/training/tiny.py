"""A scene of a few dozen splats, photographed by rung itself: what training can learn in a second."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from rung.models.card import View
from rung.splats.cloud import Cloud
from rung.splats.demo import facing
from rung.splats.render import draw
from rung.splats.training import run, trainer
from rung.splats.training.strategies import MarkovChain

SIZE, FOCAL = 48, 52.0


def clock(monkeypatch, step, picture, growth=0.0):
    """Has training go by a clock on which a step, a test picture and the growth after a step take so many seconds, and
    nothing else any; it is called for the seconds so far."""
    now = [0.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))
    monkeypatch.setattr(trainer, "time", run.time)
    learn, evaluate, change = trainer.Trainer.learn, run.evaluate, MarkovChain.change

    def learned(self, *arguments):
        now[0] += step
        return learn(self, *arguments)

    def evaluated(cloud, views, shots, indexes, **more):
        now[0] += picture * len(indexes)
        return evaluate(cloud, views, shots, indexes, **more)

    def changed(self, *arguments):
        now[0] += growth
        return change(self, *arguments)

    monkeypatch.setattr(trainer.Trainer, "learn", learned)
    monkeypatch.setattr(MarkovChain, "change", changed)
    monkeypatch.setattr(run, "evaluate", evaluated)
    return lambda: now[0]


def cloud(count=60, seed=1):
    rng = np.random.default_rng(seed)
    return Cloud(
        (rng.standard_normal((count, 3)) * 0.5).astype(np.float32),
        rng.standard_normal((count, 4)).astype(np.float32),
        np.log(rng.uniform(0.08, 0.3, (count, 3))).astype(np.float32),
        np.full(count, 2.0, np.float32),
        rng.uniform(-1.5, 1.5, (count, 1, 3)).astype(np.float32),
    )


def camera(angle, height=0.6, far=3.0):
    """Camera to world [4, 4], axes right, up, backward."""
    return facing(np.array([far * math.cos(angle), height, far * math.sin(angle)]), np.zeros(3))


def view(pose, name="view"):
    turn = pose[:3, :3] * np.array([1.0, -1.0, -1.0])
    rows = np.concatenate([turn.T, -(turn.T @ pose[:3, 3:])], axis=1)
    return View(name, name, SIZE, SIZE, FOCAL, FOCAL, SIZE / 2, SIZE / 2, tuple(rows.reshape(-1).tolist()))


def make(folder: Path, views=8, points=True, shift=(0.0, 0.0, 0.0), scale=1.0) -> Path:
    """Writes the scene; ``shift`` and ``scale`` move it away from where training computes."""
    folder.mkdir(parents=True)
    scene, frames = cloud(), []
    for number in range(views):
        pose = camera(2 * math.pi * number / views, 0.6 + 0.4 * (number % 2))
        Image.fromarray(draw(scene, view(pose))).save(folder / f"{number:02d}.png")
        pose[:3, 3] = pose[:3, 3] * scale + shift
        frames.append({"file_path": f"{number:02d}.png", "transform_matrix": pose.tolist()})
    sizes = {"w": SIZE, "h": SIZE, "fl_x": FOCAL, "fl_y": FOCAL}
    more = {}
    if points:
        rows = np.zeros(len(scene.means), [(n, "<f4") for n in "xyz"])
        for column, name in enumerate("xyz"):
            rows[name] = scene.means[:, column] * scale + shift[column]
        head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}"]
        head += [*(f"property float {name}" for name in "xyz"), "end_header", ""]
        (folder / "points.ply").write_bytes("\n".join(head).encode() + rows.tobytes())
        more = {"ply_file_path": "points.ply"}
    (folder / "transforms.json").write_text(json.dumps({**sizes, **more, "frames": frames}))
    return folder
