"""A run that goes on, after a kill or after numbers that are none: with the plan, the rungs and the state it had."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch

from rung.core.errors import RungError, UsageError
from rung.nn.quantized import binding
from rung.run.journal import Journal
from rung.splats import read, scenes, write
from rung.splats.training import checkpoint, model, run, trainer
from rung.splats.training.model import Corrections
from rung.splats.training.run import ProgressListener, train
from rung.splats.training.settings import Settings
from rung.splats.training.strategies import Classic, MarkovChain
from tests.splats.training import tiny


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("scene") / "tiny")


@pytest.fixture
def fresh(monkeypatch):
    """Makes the process one that has not left any rung, now and when it is called."""

    def forget():
        monkeypatch.setattr(binding, "journal", Journal())
        binding.rasterizer_of.cache_clear()

    forget()
    yield forget
    binding.rasterizer_of.cache_clear()


def settings(scene, **more):
    return Settings(**{"scene": str(scene), "steps": 20, "max_splats": 100, "threads": 1, "eval_split": 4, **more})


def killed_at(step):
    def progress(now):
        if now.step == step:
            raise Killed

    return ProgressListener(progress=progress)


def wrong_once(monkeypatch, call):
    """The loss of that call is no number."""
    calls, honest = [], trainer.photometric

    def photometric(color, truth):
        calls.append(1)
        return honest(color, truth) * (float("nan") if len(calls) == call else 1.0)

    monkeypatch.setattr(trainer, "photometric", photometric)


def test_the_plan_is_that_of_the_first_start(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(run.sfm, "posed", lambda source, out, **more: scene)
    with pytest.raises(Killed):
        train(settings("photographs", sfm=True), tmp_path, listener=killed_at(1))
    begun = json.loads((tmp_path / "config.json").read_text())
    assert begun["plan"]["splats"] == 100
    monkeypatch.delattr(run._Run, "_planned")
    with pytest.raises(Killed):
        train(settings("photographs", sfm=True), tmp_path, resume=True, listener=killed_at(2))
    assert json.loads((tmp_path / "config.json").read_text()) == begun


def test_a_rung_that_was_left_stays_left(scene, tmp_path, monkeypatch, fresh):
    wrong_once(monkeypatch, 7)
    with pytest.raises(Killed):
        train(settings(scene, steps=11, checkpoint_every=5), tmp_path, listener=killed_at(11))
    fresh()
    done = train(Settings(str(scene)), tmp_path, resume=True)
    (step,) = done.metrics["report"]["steps"]
    assert (step["rung"], step["to"]) == ("numba.tile", "torch.tile")
    assert "no number" in step["reason"]


def test_learned_exposures_and_poses_come_back_from_a_loss_that_is_no_number(scene, tmp_path, monkeypatch, fresh):
    wrong_once(monkeypatch, 3)
    done = train(settings(scene, steps=4, exposure=True, optimize_poses=True), tmp_path)
    assert done.steps == 4
    assert np.isfinite(done.metrics["psnr"])


def test_restored_corrections_have_no_gradients():
    fixed = Corrections(2, True, True, torch.device("cpu"))
    state = fixed.state()
    for value in fixed.values.values():
        value.grad = torch.full_like(value, float("nan"))
    fixed.restore(state)
    fixed.step(0.0, 1)
    assert all(bool(torch.isfinite(value).all()) for value in fixed.values.values())


@pytest.mark.parametrize("part", ["means", "exposure"])
def test_a_state_that_is_no_number_is_not_saved_but_gone_back_from(part, scene, tmp_path, monkeypatch, fresh):
    honest, broken, said = trainer.Trainer.advance, [], []

    def advance(self):
        result = honest(self)
        if self.step == 10 and not broken:
            broken.append(1)
            values = self.corrections.values if part == "exposure" else self.model.values
            with torch.no_grad():
                values[part][0] = float("nan")
        return result

    monkeypatch.setattr(trainer.Trainer, "advance", advance)
    options = settings(scene, steps=11, checkpoint_every=5, exposure=True)
    done = train(options, tmp_path, listener=ProgressListener(note=said.append))
    assert done.steps == 11
    assert any(f"values of {part}" in text and "Back to step 5" in text for text in said)
    assert np.isfinite(read(tmp_path / "splats.ply").means).all()


@pytest.mark.parametrize("strategy", [MarkovChain, Classic])
def test_growth_leaves_what_is_no_number_to_be_found(strategy):
    learned = model.Model(tiny.cloud(), torch.device("cpu"))
    with torch.no_grad():
        learned.values["logits"].fill_(float("nan"))
    growing, chance = strategy(200), torch.Generator().manual_seed(0)
    growing.add_splats(learned, chance) if strategy is MarkovChain else growing.drop(learned, 0.0)
    assert len(learned) == 60
    assert bool(learned.values["logits"].isnan().all())


@pytest.mark.parametrize("wrong", [{"eval_split": 1}, {"init": "nowhere.ply"}, {"scene": "demo", "eval_split": 1}])
def test_a_run_that_is_refused_leaves_its_folder_to_the_next(wrong, scene, tmp_path, monkeypatch):
    monkeypatch.setattr(run.demo, "make", lambda folder: shutil.copytree(scene, folder))
    with pytest.raises(RungError):
        train(settings(**{"scene": scene, **wrong}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_cameras_that_were_found_outlive_a_refusal(scene, tmp_path, monkeypatch):
    def posed(source, out, **more):
        (out / "sparse/0").mkdir(parents=True)
        return scene

    monkeypatch.setattr(run.sfm, "posed", posed)
    said = []
    with pytest.raises(UsageError, match="No photograph is left"):
        train(settings("photographs", sfm=True, eval_split=1), tmp_path, listener=ProgressListener(note=said.append))
    assert [path.name for path in tmp_path.iterdir()] == ["scene"]
    assert any("cameras that were found are kept" in text for text in said)


def test_going_on_needs_no_start_and_clears_up_after_the_kill(scene, tmp_path):
    out, begin = tmp_path / "run", tmp_path / "begin.ply"
    write(begin, tiny.cloud())
    with pytest.raises(Killed):
        train(settings(scene, init=str(begin), steps=3), out, listener=killed_at(2))
    begin.unlink()
    halves = [
        out / name
        for name in ("checkpoints/.step-00000002-a_b1c2d3.npz", ".splats-a_b1c2d3.ply", ".metrics-a_b1c2d3.json")
    ]
    halves += [out / "exports" / ".splats-000002-a_b1c2d3.ply", out / "test" / "left" / ".00.truth-a_b1c2d3.png"]
    for half in halves:
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(b"half")
    mine = out / ".notes"
    mine.write_text("kept")
    said = []
    assert train(Settings(str(scene)), out, resume=True, listener=ProgressListener(note=said.append)).steps == 3
    assert said[-1] == "goes on after step 0"
    assert not any(half.exists() for half in halves)
    assert mine.exists()


def test_a_run_that_was_killed_while_it_wrote_its_first_file_is_begun_again(scene, tmp_path):
    (tmp_path / ".config-a_b1c2d3.json").write_bytes(b"{")
    assert train(settings(scene, steps=1), tmp_path).steps == 1
    assert not list(tmp_path.glob(".config*"))


def test_a_deadline_that_is_over_before_training_leaves_half_a_minute_at_most(scene, tmp_path, monkeypatch):
    now = tiny.clock(monkeypatch, step=2.0, picture=1.0)
    said = []
    options = settings(scene, steps=None, seconds=1000.0)
    train(options, tmp_path, begin=now() - 2000, listener=ProgressListener(note=said.append))
    assert json.loads((tmp_path / "metrics.json").read_text())["seconds"] == 30
    assert any("though --time leaves less" in text for text in said)


def test_points_that_no_picture_shows_are_told_of_as_a_share(scene, tmp_path):
    away = tmp_path / "away"
    shutil.copytree(scene, away)
    head, _, body = (away / "points.ply").read_bytes().partition(b"end_header\n")
    points = np.frombuffer(body, "<f4").reshape(-1, 3).copy()
    points[15:] += 1000
    (away / "points.ply").write_bytes(head + b"end_header\n" + points.tobytes())
    said = []
    train(settings(away, steps=1), tmp_path / "run", listener=ProgressListener(note=said.append))
    assert any(text.startswith("75% of the points are in no picture") for text in said)


def test_cameras_that_were_learned_are_there_when_a_run_is_stopped(scene, tmp_path):
    def stopped(now):
        if now.step == 3:
            signal.raise_signal(signal.SIGINT)

    done = train(settings(scene, optimize_poses=True), tmp_path, listener=ProgressListener(progress=stopped))
    assert (done.stopped, done.steps) == (True, 4)
    learned = checkpoint.newest(tmp_path).arrays["corrections/value.pose"]
    cameras = json.loads((tmp_path / "cameras.json").read_text())
    begun = scenes.scene(scene).views
    moved = [not np.allclose(camera["pose"], view.pose, atol=1e-7) for camera, view in zip(cameras, begun, strict=True)]
    assert any(moved)
    assert moved == (np.abs(learned).max(axis=1) > 0).tolist()


@pytest.mark.parametrize("cameras", [False, True])
def test_a_run_that_is_stopped_before_training_leaves_its_folder_free_and_says_so(
    cameras, scene, tmp_path, monkeypatch
):
    def stopped(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer.Trainer, "prove", stopped)
    if cameras:
        (tmp_path / "scene/sparse").mkdir(parents=True)
        monkeypatch.setattr(run.sfm, "posed", lambda source, out, **more: scene)
        monkeypatch.setattr(run, "claim", lambda out, settings, resume, options: (settings, None))
    said = []
    with pytest.raises(KeyboardInterrupt):
        train(settings(scene, sfm=cameras), tmp_path, listener=ProgressListener(note=said.append))
    assert [path.name for path in tmp_path.iterdir()] == (["scene"] if cameras else [])
    assert "training had not begun" in said[-1]
    assert ("train on them" if cameras else "the same command begins again") in said[-1]


def test_a_second_interrupt_leaves_the_last_checkpoint_and_says_how_to_go_on(scene, tmp_path, monkeypatch):
    def stopped(now):
        if now.step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    said = []
    with pytest.raises(KeyboardInterrupt):
        train(settings(scene), tmp_path, listener=ProgressListener(note=said.append, progress=stopped))
    assert said[-1].endswith("--resume goes on")
    assert checkpoint.newest(tmp_path).facts["step"] == 0


def test_a_scene_is_looked_at_before_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "device_here", lambda *arguments: pytest.fail("the device was probed"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RungError, match="holds no scene"):
        train(settings(tmp_path / "empty"), tmp_path / "run")
