"""Training splats: steps a second, quality in a time, and kills at random moments.

    python benchmarks/splat_scene.py --out SCENE
    python benchmarks/splat_training.py speed SCENE [--splats 36000 --steps 60]
    python benchmarks/splat_training.py quality SCENE --out DIR [--time 30m]
    python benchmarks/splat_training.py kills [--number 200]
    python benchmarks/splat_training.py formats [SCENE] [--steps 1500]

``speed`` begins with as many random splats as it is asked for and prints the median step of the second half.
``quality`` runs ``rung splat train`` with its defaults; what the nearest training view scores ``splat_scene.py`` says.
``formats`` trains once in each format, in processes of their own, and prints PSNR, seconds, and peaks beside plans.
``kills`` sends SIGKILL to runs of a tiny scene at random moments, reads what they left, resumes each until it is done,
and compares bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path

import numpy as np

from rung.splats import demo, read, write
from rung.splats import scene as scene_of
from rung.splats.photographs import Photographs
from rung.splats.training import initialization
from rung.splats.training.run import ProgressListener, train
from rung.splats.training.settings import Settings


def speed(scene: str, splats: int, steps: int) -> None:
    """Median seconds of a step with that many splats."""
    card = scene_of(scene)
    shots = Photographs(card, 1 << 30)
    chance = np.random.default_rng(0)
    pictures = [shots.shot(index).rgb for index in range(len(shots.views))]
    points, colors = initialization.random_points(shots.views, pictures, splats, chance)
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.ply"
        write(first, initialization.cloud_of(points, colors, 3, 0.5, 1.0))
        listener = ProgressListener(progress=lambda now: times.append(time.perf_counter()))
        train(
            Settings(scene, init=str(first), max_splats=splats, steps=steps, eval_split=0),
            Path(folder) / "run",
            listener=listener,
        )
    apart = np.diff(times)[len(times) // 2 :]
    view = shots.views[0]
    print(f"{len(points)} splats, {view.width} x {view.height}: {1 / statistics.median(apart):.2f} steps/s")


def quality(scene: str, out: str, limit: str) -> None:
    """The command with its defaults and a deadline."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "rung", "splat", "train", scene, "--out", out, "--time", limit], check=True)
    print(f"{time.monotonic() - begin:.0f} s in all")


def kills(number: int) -> None:
    """Runs that are killed again and again end as one that was not, and leave nothing half written behind.

    A run is a copy of this process, which has imported and compiled all that it needs: 200 starts would take most of
    the time. Half of the kills come at any moment of a run, half a moment after it has saved: with a checkpoint every
    second step many of those hit it while it saves.
    """
    chance, every, wrong = random.Random(0), 2, list[str]()
    in_writing = before_first = done = run = 0
    with tempfile.TemporaryDirectory() as folder:
        scene = Path(folder) / "scene"
        demo.make(scene)
        settings = Settings(str(scene), max_resolution=64, steps=60, max_splats=400, checkpoint_every=every, threads=1)
        train(settings, Path(folder) / "warm")
        begin = time.monotonic()
        os.waitpid(_begun(settings, Path(folder) / "whole"), 0)
        long = time.monotonic() - begin
        expected = Path(folder, "whole", "splats.ply").read_bytes()
        print(f"a run takes {long:.1f} s", flush=True)
        while done < number:
            out, run, step = Path(folder, f"run-{run}"), run + 1, 0
            while (status := _killed(_begun(settings, out), out, chance, long)) == signal.SIGKILL:
                done += 1
                in_writing += any(out.rglob(".step-*")) or any(out.rglob(".splats-*"))
                before_first += not any(out.glob("checkpoints/step-*"))
                before, step = step, _newest(out, wrong)
                if step < max(before, _logged(out) - every):
                    wrong.append(f"{out.name}: step {step} after a kill, {before} before, {_logged(out)} in the log")
                if done % 20 == 0:
                    print(f"{done} kills, {run} runs, {in_writing} while writing, wrong: {wrong}", flush=True)
            if status or not (out / "metrics.json").is_file() or (out / "splats.ply").read_bytes() != expected:
                wrong.append(f"{out.name}: ends with {status}, and other bytes or none")
            shutil.rmtree(out)
    print(
        f"{done} kills in {run} runs, {in_writing} while splats or a checkpoint were written, {before_first} before "
        f"the first was there: {len(wrong)} wrong {wrong}"
    )


def _begun(settings: Settings, out: Path) -> int:
    """The process of a run, which goes on where there is one."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        train(settings, out, resume=(out / "config.json").is_file())
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def _killed(process: int, out: Path, chance: random.Random, long: float) -> int:
    """Kills a run at a random moment, unless it ends before that; what it ended with, as ``os.waitpid`` says."""
    saved, wait = {path.name for path in out.glob("checkpoints/step-*")}, chance.uniform(0, long)
    if chance.random() < 0.5:
        wait = chance.uniform(0, 0.05 * long)
        while {path.name for path in out.glob("checkpoints/step-*")} <= saved:
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.002)
    time.sleep(wait)
    os.kill(process, signal.SIGKILL)  # one that has ended keeps the status it ended with
    return os.waitpid(process, 0)[1]


def _newest(out: Path, wrong: list[str]) -> int:
    """Step of the newest checkpoint; each of them, and the splats, are read whole."""
    steps = [0]
    for path in out.glob("checkpoints/step-*"):
        try:
            with np.load(path) as archive:
                facts = json.loads({name: archive[name] for name in archive.files}["facts"].tobytes())
            steps.append(facts["step"])
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            wrong.append(f"{path}: {error}")
    if (out / "splats.ply").is_file():
        read(out / "splats.ply")
    return max(steps)


def _logged(out: Path) -> int:
    """The last step in the log; its last line may be half written."""
    steps = [0]
    for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines() if (out / "log.jsonl").is_file() else []:
        with contextlib.suppress(ValueError):
            steps.append(json.loads(line)["step"])
    return max(steps)


def formats(scene: str, steps: int) -> None:
    """PSNR and memory of f32 and of f32+sh16 after as many steps."""
    for name in ("f32", "f32+sh16"):
        with tempfile.TemporaryDirectory() as folder:
            words = ["splat", "train", scene, "--out", f"{folder}/run", "--steps", str(steps), "--format", name]
            call = [sys.executable, "-m", "rung", *words, "--json"]
            found = json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE).stdout)
        plan, peak = sum(found["plan"]["memory"].values()), found["peak_memory_bytes"]
        print(
            f"{name}: {found['psnr']:.2f} dB, SSIM {found['ssim']:.4f}, {found['splats']:,} splats, "
            f"{found['seconds']:.0f} s; peak {peak / 2**20:,.0f} MB of {plan / 2**20:,.0f} planned",
            flush=True,
        )


def main() -> None:
    """Prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    part = parts.add_parser("speed")
    part.add_argument("scene")
    part.add_argument("--splats", type=int, default=36_000)
    part.add_argument("--steps", type=int, default=60)
    part = parts.add_parser("quality")
    part.add_argument("scene")
    part.add_argument("--out", required=True)
    part.add_argument("--time", default="30m")
    part = parts.add_parser("kills")
    part.add_argument("--number", type=int, default=200)
    part = parts.add_parser("formats")
    part.add_argument("scene", nargs="?", default="demo")
    part.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    if options.what == "speed":
        speed(options.scene, options.splats, options.steps)
    elif options.what == "quality":
        quality(options.scene, options.out, options.time)
    elif options.what == "formats":
        formats(options.scene, options.steps)
    else:
        kills(options.number)


if __name__ == "__main__":
    main()
