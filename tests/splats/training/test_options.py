"""Every option of ``rung splat train`` changes what it says it changes: one run for each, beside one without it."""

import io
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rung.cli.app import main
from rung.splats import read, write
from rung.splats.training import run
from rung.splats.training.settings import Settings
from tests.splats.training import tiny

#: As many steps as it takes to come to a photograph again: what is learned of one shows then.
COMMON = ("--steps", "8", "--max-splats", "80", "--threads", "1", "--quiet")


class Outcome:
    """The files and metrics of a run."""

    def __init__(self, out: Path) -> None:
        self.files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        self.splats = read(out / "splats.ply")
        self.metrics, self.config = (json.loads(self.files[f"{name}.json"]) for name in ("metrics", "config"))
        self.log = [json.loads(line) for line in self.files["log.jsonl"].splitlines()]
        self.cameras = json.loads(self.files["cameras.json"])

    @property
    def trained_on(self):
        return sum(camera["split"] == "train" for camera in self.cameras)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Photographs of which the left half lets the background through; half as large ones; splats to begin with."""
    folder = tiny.make(tmp_path_factory.mktemp("scene") / "tiny")
    (folder / "images_2").mkdir()
    for file in folder.glob("*.png"):
        with Image.open(file) as opened:
            picture = opened.convert("RGBA")
        alpha = np.full((tiny.SIZE, tiny.SIZE), 255, np.uint8)
        alpha[:, : tiny.SIZE // 2] = 0
        picture.putalpha(Image.fromarray(alpha))
        picture.save(file)
        picture.reduce(2).save(folder / "images_2" / file.name)
    write(folder / "begin.ply", tiny.cloud(40))
    return folder


def trained(out, scene, *words):
    """Runs the command; of two options of one name the second counts."""
    with pytest.raises(SystemExit) as ending:
        main(["splat", "train", str(scene), "--out", str(out), *COMMON, *map(str, words)])
    assert not ending.value.code
    return Outcome(out)


@pytest.fixture(scope="module")
def plain(scene, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("plain") / "run", scene)


#: What is on the command line for each of the settings, and what it changes of a run (second) that was made without it.
OPTIONS = {
    "images": (("--images", "images_2"), lambda new, old: new.metrics["width"] == tiny.SIZE / 2 < old.metrics["width"]),
    "subsample": (("--subsample", 2), lambda new, old: [c["name"] for c in new.cameras] == names(old)[::2]),
    "max_images": (("--max-images", 4), lambda new, old: len(new.cameras) == 4 < len(old.cameras)),
    "steps": (("--steps", 3), lambda new, old: (new.metrics["steps"], old.metrics["steps"]) == (3, 8)),
    "max_splats": (("--max-splats", 30), lambda new, old: len(new.splats.means) == 30 < len(old.splats.means)),
    "sh_degree": (("--sh-degree", 1), lambda new, old: (new.splats.degree, old.splats.degree) == (1, 3)),
    "max_resolution": (("--max-resolution", 30), lambda new, old: new.metrics["width"] == 30),
    "memory": (("--memory", "0.6GB"), lambda new, old: new.config["plan"]["budget"] == 0.6 * 2**30 // 1),
    "format": (("--format", "f32+sh16"), lambda new, old: new.config["plan"]["harmonics"] == "f16" and moved(new, old)),
    "strategy": (("--strategy", "classic"), lambda new, old: 2 * opacity(new) < opacity(old)),
    "background": (("--background", "white"), lambda new, old: (behind(new), behind(old)) == (255, 0)),
    "alpha": (("--alpha", "masked"), lambda new, old: moved(new, old) and new.metrics["psnr"] != old.metrics["psnr"]),
    "exposure": (("--exposure",), lambda new, old: moved(new, old)),
    "antialiased": (("--antialiased",), lambda new, old: moved(new, old)),
    "optimize_poses": (("--optimize-poses",), lambda new, old: places(new) != places(old)),
    "init": (("--init", "{scene}/begin.ply"), lambda new, old: len(new.splats.means) == 40),
    "eval_split": (("--eval-split", 4), lambda new, old: (new.trained_on, old.trained_on) == (6, 7)),
    "eval_every": (("--eval-every", 3), lambda new, old: measured(new) == [3, 6, 8] and measured(old) == [8]),
    "export_every": (("--export-every", 3), lambda new, old: set(new.files) - set(old.files) == exports(3, 6)),
    "checkpoint_every": (("--checkpoint-every", 3), lambda new, old: kept(new) == [6, 8] and kept(old) == [0, 8]),
    "seed": (("--seed", 1), lambda new, old: moved(new, old)),
}  # fmt: skip
#: Those with a test of their own below.
ALONE = {"scene", "sfm", "seconds", "device", "threads"}


def names(outcome):
    return [camera["name"] for camera in outcome.cameras]


def places(outcome):
    return [camera["pose"] for camera in outcome.cameras]


def opacity(outcome):
    return float(np.median(outcome.splats.opacities))


def moved(new, old):
    return new.files["splats.ply"] != old.files["splats.ply"]


def behind(outcome):
    """Return the color where the test photograph lets the background through."""
    with Image.open(io.BytesIO(outcome.files["test/00.truth.png"])) as picture:
        (shown,) = np.unique(np.asarray(picture)[:, : tiny.SIZE // 2])
    return shown


def measured(outcome):
    return [line["step"] for line in outcome.log if "test_psnr" in line]


def exports(*steps):
    return {f"exports/splats-{step:06d}.ply" for step in steps}


def kept(outcome):
    return sorted(int(name[17:25]) for name in outcome.files if name.startswith("checkpoints"))


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Settings)} - ALONE))
def test_an_option_changes_what_it_says(name, plain, scene, tmp_path):
    words, changes = OPTIONS[name]
    outcome = trained(tmp_path / "run", scene, *(str(word).format(scene=scene) for word in words))
    assert changes(outcome, plain)


def test_a_time_takes_the_place_of_steps(scene, tmp_path, monkeypatch):
    now = tiny.clock(monkeypatch, step=1.0, picture=0.0)
    monkeypatch.setattr("rung.cli.commands.run.splat.train.monotonic", now)
    with pytest.raises(SystemExit):
        main(["splat", "train", str(scene), "--out", str(tmp_path / "run"), "--time", "11s", "--quiet"])
    assert Outcome(tmp_path / "run").metrics["steps"] == 9  # two seconds are left for files


def test_threads_and_devices_are_those_asked_for(scene, tmp_path, monkeypatch):
    honest, calls = run.device_here, []

    def device(name, *arguments):
        calls.append((name, torch.get_num_threads()))
        return honest(name, *arguments)

    monkeypatch.setattr(run, "device_here", device)
    before = torch.get_num_threads()
    try:
        trained(tmp_path / "run", scene, "--device", "cpu", "--threads", 1)
    finally:
        torch.set_num_threads(before)
    assert calls == [("cpu", 1)]
