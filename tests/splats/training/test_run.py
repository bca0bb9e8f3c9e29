"""Whole runs on a scene of a few dozen splats: what comes out, that it is the same again, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rung.core.errors import DiskFull, DoesNotFit, UsageError
from rung.nn.quantized import binding
from rung.run.journal import Journal
from rung.splats import read, write
from rung.splats.training import checkpoint, initialization, run, trainer
from rung.splats.training.run import ProgressListener, train
from rung.splats.training.settings import Settings, options_that_differ, parse_time
from tests.splats.training import tiny

KEYS = "steps seconds splats sh_degree width height psnr ssim lpips images peak_memory_bytes ply plan report"


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("scene") / "tiny")


def settings(scene, **more):
    return Settings(**{"scene": str(scene), "steps": 60, "max_splats": 150, "threads": 1, "eval_split": 4, **more})


class Killed(Exception):
    pass


def killed_at(step):
    """Ends a run without a chance to save, as a kill does."""

    def progress(now):
        if now.step == step:
            raise Killed

    return ProgressListener(progress=progress)


@pytest.mark.parametrize(("strategy", "bar"), [("mcmc", 18.0), ("classic", 16.0)])
def test_a_tiny_scene_is_learned_and_its_folder_is_whole(scene, tmp_path, strategy, bar):
    out = tmp_path / "run"
    done = train(settings(scene, strategy=strategy), out)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics == json.loads(json.dumps(done.metrics))
    assert set(metrics) == set(KEYS.split())
    assert metrics["psnr"] > bar
    assert [image["name"] for image in metrics["images"]] == ["00.png", "04.png"]
    assert (metrics["steps"], metrics["width"], metrics["lpips"]) == (60, tiny.SIZE, None)
    assert {path.name for path in out.iterdir()} == {
        *("splats.ply", "cameras.json", "metrics.json", "config.json", "log.jsonl", "curve.png", "test", "checkpoints")
    }
    assert {path.name for path in (out / "test").iterdir()} == {
        f"{stem}{end}" for stem in ("00", "04") for end in (".png", ".truth.png")
    }
    assert metrics["splats"] == len(read(out / "splats.ply").means) <= 150
    splits = [camera["split"] for camera in json.loads((out / "cameras.json").read_text())]
    assert splits == ["test", "train", "train", "train"] * 2


@pytest.mark.parametrize("alike", [True, False])
def test_without_points_it_begins_where_pictures_agree_or_with_random_ones_and_learns(tmp_path, monkeypatch, alike):
    if not alike:
        monkeypatch.setattr(
            initialization, "matched_points", lambda *_: (np.zeros((0, 3), "f4"), np.zeros((0, 3), "u1"))
        )
    folder, said = tiny.make(tmp_path / "bare", points=False), []
    done = train(settings(folder), tmp_path / "run", listener=ProgressListener(note=said.append))
    (note,) = (text for text in said if "no points in the scene" in text)
    assert ("comparing its pictures" in note) == alike
    assert "random" in note or alike
    assert done.metrics["psnr"] > 13


def test_files_are_in_the_worlds_own_units(tmp_path):
    shift = (100.0, -50.0, 20.0)
    folder = tiny.make(tmp_path / "far", shift=shift, scale=10.0)
    train(settings(folder, steps=20), tmp_path / "run")
    means = read(tmp_path / "run" / "splats.ply").means
    assert np.abs(np.median(means, axis=0) - shift).max() < 10
    assert (means.std(axis=0) > 1).all()
    assert (means.std(axis=0) < 20).all()
    poses = [np.array(c["pose"]).reshape(3, 4) for c in json.loads((tmp_path / "run" / "cameras.json").read_text())]
    stands = np.stack([-pose[:, :3].T @ pose[:, 3] for pose in poses])
    assert np.allclose(np.linalg.norm((stands - shift)[:, [0, 2]], axis=1), 30, atol=1e-3)


@pytest.mark.parametrize("strategy", ["mcmc", pytest.param("classic", marks=pytest.mark.slow)])
def test_the_same_again_is_byte_equal_also_after_a_kill(scene, tmp_path, strategy):
    options = settings(scene, strategy=strategy, checkpoint_every=9, exposure=True, background="random", steps=40)
    train(options, tmp_path / "one")
    for stop in (4, 9, 31):
        out = tmp_path / f"killed-{stop}"
        with pytest.raises(Killed):
            train(options, out, listener=killed_at(stop))
        done = train(Settings(scene=str(scene)), out, resume=True)
        assert done.steps == 40
        assert (out / "splats.ply").read_bytes() == (tmp_path / "one" / "splats.ply").read_bytes()
    other = train(settings(scene, strategy=strategy, steps=40, seed=7), tmp_path / "other")
    assert other.steps == 40
    assert (tmp_path / "other" / "splats.ply").read_bytes() != (tmp_path / "one" / "splats.ply").read_bytes()


def test_a_folder_is_claimed_once_and_gone_on_with_the_same_options(scene, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="holds no run"):
        train(settings(scene), out, resume=True)
    with pytest.raises(Killed):
        train(settings(scene), out, listener=killed_at(2))
    with pytest.raises(UsageError, match="not empty"):
        train(settings(scene), out)
    with pytest.raises(UsageError) as refused:
        train(settings(scene, steps=61, seed=3), out, resume=True)
    assert refused.value.facts == ("--steps 61 (was 60)", "--seed 3 (was 42)")
    assert train(settings(scene), out, resume=True).steps == 60
    assert train(settings(scene), out, resume=True).metrics["steps"] == 60  # finished: said again


def test_a_run_is_not_gone_on_with_a_default_that_it_was_not_begun_with():
    begun, resumed = Settings("a", seed=1, steps=9), Settings("a", steps=9)
    assert options_that_differ(resumed, begun) == []
    assert options_that_differ(resumed, begun, {"scene", "steps"}) == []
    assert options_that_differ(resumed, begun, {"scene", "seed"}) == ["--seed 42 (was 1)"]


def test_a_run_does_not_begin_with_a_file_without_splats(scene, tmp_path):
    write(tmp_path / "empty.ply", tiny.cloud(0))
    with pytest.raises(UsageError, match="holds no splats to begin with"):
        train(settings(scene, init=str(tmp_path / "empty.ply")), tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_the_demo_ends_with_a_page_and_other_runs_do_not(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(run.demo, "make", lambda folder: shutil.copytree(scene, folder))
    for name in ("demo", scene):
        done = train(settings(name, steps=2), tmp_path / Path(name).name)
        assert done.steps == 2
    assert "<canvas" in (tmp_path / "demo/page.html").read_text("utf-8")
    assert not (tmp_path / scene.name / "page.html").exists()


@pytest.mark.parametrize("times", [0.5, 2])
def test_plan_and_sizes_are_those_of_the_pictures_that_were_trained_on(times, scene, tmp_path):
    others, side = tmp_path / "others", int(times * tiny.SIZE)
    others.mkdir()
    for file in scene.glob("*.png"):
        with Image.open(file) as picture:
            picture.resize((side, side)).save(others / file.name)
    found = train(settings(scene, steps=2, images=str(others)), tmp_path / "run").metrics
    with Image.open(tmp_path / "run/test/00.png") as picture:
        assert (found["width"], found["height"]) == picture.size == (side, side)
    assert (found["plan"]["width"], found["plan"]["height"]) == (side, side)


def test_a_loss_that_is_no_number_goes_back_and_a_rung_lower(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(binding, "journal", Journal())
    binding.rasterizer_of.cache_clear()
    calls, honest = [], trainer.photometric

    def once_wrong(color, truth):
        calls.append(1)
        return honest(color, truth) * (float("nan") if len(calls) == 12 else 1.0)

    monkeypatch.setattr(trainer, "photometric", once_wrong)
    said = []
    done = train(
        settings(scene, steps=15, checkpoint_every=5), tmp_path / "run", listener=ProgressListener(note=said.append)
    )
    binding.rasterizer_of.cache_clear()
    assert any("no number" in text and "Back to step 10" in text for text in said)
    assert [(step["rung"], step["to"]) for step in done.metrics["report"]["steps"]] == [("numba.tile", "torch.tile")]
    assert (done.steps, len(calls)) == (15, 17)


def test_a_rung_whose_view_is_not_that_of_ref_is_left_before_the_first_step(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(binding, "journal", Journal())
    binding.rasterizer_of.cache_clear()
    honest = trainer.differs

    def vanished(draw, *arguments):
        return "a third of the splats have vanished" if draw.rung.name == "numba.tile" else honest(draw, *arguments)

    monkeypatch.setattr(trainer, "differs", vanished)
    done = train(settings(scene, steps=1), tmp_path / "run")
    binding.rasterizer_of.cache_clear()
    (step,) = done.metrics["report"]["steps"]
    assert (step["rung"], step["to"], step["reason"]) == (
        *("numba.tile", "torch.tile"),
        "a third of the splats have vanished",
    )


def test_a_loss_that_stays_no_number_ends_the_run_with_its_last_good_state(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(binding, "journal", Journal())
    binding.rasterizer_of.cache_clear()
    honest = trainer.photometric
    monkeypatch.setattr(trainer, "photometric", lambda color, truth: honest(color, truth) * float("nan"))
    with pytest.raises(trainer.Diverged, match="step 1 is no number"):
        train(settings(scene, steps=5), tmp_path / "run")
    binding.rasterizer_of.cache_clear()
    assert np.isfinite(read(tmp_path / "run" / "splats.ply").means).all()


def test_when_all_splats_go_out_it_says_why_and_stops(scene, tmp_path, monkeypatch):
    honest = trainer.Trainer.advance

    def out_go_all(self):
        stats = honest(self)
        with torch.no_grad():
            self.model.values["logits"].fill_(-20)
        return stats

    monkeypatch.setattr(trainer.Trainer, "advance", out_go_all)
    with pytest.raises(trainer.AllGone, match="all have gone out"):
        train(settings(scene), tmp_path / "run")


def test_a_full_disk_keeps_what_was_saved(scene, tmp_path, monkeypatch):
    out, saved = tmp_path / "run", []

    def full(file, **arrays):
        saved.append(1)
        if len(saved) == 3:
            raise OSError(28, "No space left on device")
        honest(file, **arrays)

    honest = np.savez
    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.raises(DiskFull, match="no room"):
        train(settings(scene, checkpoint_every=5), out)
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-00000000.npz", "step-00000005.npz"]
    assert train(Settings(scene=str(scene)), out, resume=True).steps == 60


def test_a_damaged_checkpoint_is_passed_over(scene, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Killed):
        train(settings(scene, checkpoint_every=5), out, listener=killed_at(12))
    newest = out / "checkpoints" / "step-00000010.npz"
    newest.write_bytes(newest.read_bytes()[:-400])
    said = []
    train(Settings(scene=str(scene)), out, resume=True, listener=ProgressListener(note=said.append))
    assert "goes on after step 5" in said


def test_a_deadline_is_kept(scene, tmp_path, monkeypatch):
    now = tiny.clock(monkeypatch, step=0.25, picture=0.125, growth=0.125)
    done = train(settings(scene, steps=None, seconds=6.0), tmp_path / "run")
    measured = 0.125 * (1 + len(done.metrics["images"]))  # one before training, to know how long they take
    assert now() == measured + done.metrics["seconds"] + 0.125 <= 6.0  # the growth after the last step
    assert 3.0 < done.metrics["seconds"] == 0.375 * done.steps - 0.125


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 5, "seconds": 3.0}, "same thing twice"),
        ({"sh_degree": 4}, "degree 0 to 3"),
        ({"strategy": "best"}, "there are mcmc and classic"),
        ({"alpha": "both"}, "there are masked and transparent"),
        ({"background": "blueish"}, "no background"),
        ({"scene": "demo", "sfm": True}, "comes with its own"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_read(tmp_path, options, said):
    with pytest.raises(UsageError, match=said):
        train(Settings(**{"scene": "nowhere", **options}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_little_memory_is_fewer_splats(scene, tmp_path):
    done = train(settings(scene, steps=1, max_splats=900_000, memory="1GB"), tmp_path / "run")
    assert done.metrics["plan"]["splats"] < 900_000
    with pytest.raises(DoesNotFit, match="does not fit into"):
        train(settings(scene, memory="100MB"), tmp_path / "none")


def test_times():
    assert [parse_time(text) for text in ("90", "90s", "30m", "1.5h")] == [90, 90, 1800, 5400]
    for text in ("", "soon", "-3", "0", "1d"):
        with pytest.raises(UsageError, match="is no time"):
            parse_time(text)


def test_cameras_are_found_first_where_they_are_asked_for(scene, tmp_path, monkeypatch):
    calls = []

    def posed(source, out, **more):
        calls.append((source, (out.parent / "config.json").is_file()))
        if len(calls) == 1:
            raise Killed
        return scene

    monkeypatch.setattr(run.sfm, "posed", posed)
    options = settings("photographs", sfm=True, subsample=2, steps=1)
    with pytest.raises(Killed):
        train(options, tmp_path / "run")
    done = train(options, tmp_path / "run", resume=True)
    assert calls == [(Path("photographs"), True)] * 2
    assert len(json.loads((tmp_path / "run/cameras.json").read_text())) == 4
    assert done.steps == 1
