"""Harmonics with Adam's means in 8 bits: colors, gradients and steps against plain torch and against 32 bits."""

import numpy as np
import pytest
import torch

from rung.ops.rasterize import Camera
from rung.ops.rasterize.projecting import view_colors
from rung.splats.training import adam_8bit
from rung.splats.training.model import NAMES, Model
from rung.splats.training.run import train
from rung.splats.training.settings import Settings
from tests.splats.training import tiny
from tests.support.splats import random_cloud

COUNT = 700  # more than a thread takes at a time
RATES = {"means": 0.0, "quats": 0.0, "log_scales": 0.0, "logits": 0.0, "base": 2.5e-3, "harmonics": 1.25e-4}
POSE = torch.eye(4)
POSE[:3, 3] = torch.tensor([0.3, -0.2, 4.0])


@pytest.fixture
def plain(monkeypatch):
    """Turns compiled kernels off when it is called."""
    return lambda: monkeypatch.setattr(adam_8bit, "compiled_for", lambda values: None)


def stepped(model, degree, steps=1):
    """The model after steps with gradients of the colors that are the same each time."""
    camera = Camera(64, 48, 50.0, 50.0, 32.0, 24.0, degree)
    pose = POSE.clone().requires_grad_()
    gradient = torch.from_numpy(np.random.default_rng(5).standard_normal((len(model), 3)).astype(np.float32) * 1e-5)
    gradient[::3] = 0  # what no picture shows
    for _ in range(steps):
        splats, drawn = model.splats(camera, pose)
        colors = splats.colors
        if drawn.degree is not None:
            colors = view_colors(splats, pose, degree)
        (colors * gradient).sum().backward()
        for name in NAMES:
            value = model.values[name]
            if value.requires_grad and value.grad is None:
                value.grad = torch.zeros_like(value)
        slopes = model.values["means"].grad.clone()
        model.step(RATES, degree)
    return colors.detach(), slopes, pose.grad


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("halves", ["f32", "f16"])
@pytest.mark.parametrize("kernels", [True, False])
def test_colors_and_their_gradients_are_those_of_the_specification(degree, halves, kernels, plain):
    if not kernels:
        plain()
    lean = Model(random_cloud(COUNT, 3, seed=3), torch.device("cpu"), "8bit", halves)
    begun = lean.cloud()  # as it was rounded
    full = Model(begun._replace(quats=random_cloud(COUNT, 3, seed=3).quats), torch.device("cpu"))
    for found, right in zip(stepped(lean, degree), stepped(full, degree), strict=True):
        if right is None:  # the first harmonic does not see where it is seen from
            assert not found.any()
            continue
        assert torch.allclose(found, right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))
    if halves == "f32":  # in the first step Adam's means are not rounded yet
        assert torch.allclose(lean.values["harmonics"], full.values["harmonics"].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("degree", [1, 3])
def test_compiled_steps_are_those_of_plain_torch(degree, plain):
    models = [Model(random_cloud(COUNT, 3, seed=3), torch.device("cpu"), "8bit") for _ in range(2)]
    stepped(models[0], degree, 5)
    plain()
    stepped(models[1], degree, 5)
    one, two = (model.state() for model in models)
    for name in one:
        if one[name].dtype == np.uint8:  # on the border between two codes rounding decides
            updated = one["first.harmonics.sizes"] > 0
            assert (one[name][updated] != two[name][updated]).mean() < 0.1
            assert np.abs(one[name][updated].astype(int) - two[name][updated]).max() <= 1
        else:
            assert np.allclose(one[name], two[name], rtol=1e-4, atol=1e-6), name
    sizes = one["first.harmonics.sizes"].reshape(-1)
    assert not sizes[::3].any()
    assert (sizes > 0).mean() > 0.5


@pytest.fixture(scope="module")
def hundred():
    """The harmonics in 32 bits before a hundred steps, and how far those moved them."""
    full = Model(random_cloud(COUNT, 3, seed=3), torch.device("cpu"))
    begin = full.values["harmonics"].detach().clone()
    stepped(full, 3, 100)
    return begin, (full.values["harmonics"].detach() - begin).double()


@pytest.mark.parametrize("halves", ["f32", "f16"])
@pytest.mark.parametrize("kernels", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_hundred_steps_lead_where_those_of_32_bits_do(halves, kernels, plain, hundred):
    """Each changes a coefficient by 1/8 to 8 of float16's steps: rounded to the nearest, those of 1/8 would vanish."""
    if not kernels:
        plain()
    lean, (begin, moved) = Model(random_cloud(COUNT, 3, seed=3), torch.device("cpu"), "8bit", halves), hundred
    stepped(lean, 3, 100)
    away = lean.values["harmonics"].double() - begin - moved
    assert float(away[:, 0].norm() / moved[:, 0].norm()) < 0.07
    assert float(away[:, 1:].norm() / moved[:, 1:].norm()) < (0.3 if halves == "f16" else 0.2)
    along = float((away[:, 1:] * moved[:, 1:]).sum() / moved[:, 1:].square().sum())
    assert abs(along) < 0.06  # what is rounded up and down is not lost


def test_splats_that_are_chosen_keep_their_means_and_fresh_ones_have_none():
    model = Model(random_cloud(6, 3, seed=3), torch.device("cpu"), "8bit", "f16")
    stepped(model, 3)
    before = {name: value.copy() for name, value in model.state().items()}
    model.choose(torch.tensor([4, 1, 1]), fresh=1)
    after = model.state()
    for name, value in after.items():
        kept = value[:2] if not name.startswith("value") else value
        assert np.array_equal(kept, before[name][[4, 1, 1]][: len(kept)]), name
    assert after["first.harmonics.sizes"][2] == 0
    assert after["value.harmonics"].dtype == np.float16
    model.forget(torch.tensor([0]))
    assert model.first["harmonics.sizes"][0] == 0
    again = Model.of_state(model.state(), model.taken, torch.device("cpu"))
    assert (again.lean, again.taken) == (True, 1)
    assert all(np.array_equal(value, again.state()[name]) for name, value in model.state().items())


def test_what_is_not_seen_any_more_fades_and_stays_a_number():
    model = Model(random_cloud(9, 3, seed=3), torch.device("cpu"), "8bit", "f16")
    stepped(model, 3)
    camera = Camera(64, 48, 50.0, 50.0, 32.0, 24.0, 3)
    for _ in range(700):
        splats, _ = model.splats(camera, POSE)
        (splats.colors * 0).sum().backward()
        for name in NAMES:
            value = model.values[name]
            if value.requires_grad and value.grad is None:
                value.grad = torch.zeros_like(value)
        model.step(RATES, 3)
    assert (model.first["harmonics.sizes"] == 0).all()
    assert bool(torch.isfinite(model.values["harmonics"]).all())


def test_a_run_in_halves_is_byte_equal_after_going_on(tmp_path):
    scene = tiny.make(tmp_path / "scene")
    options = {"scene": str(scene), "steps": 12, "max_splats": 100, "threads": 1, "eval_split": 4, "format": "f32+sh16"}
    whole = train(Settings(**options, checkpoint_every=5), tmp_path / "whole").metrics
    assert (whole["plan"]["harmonics"], whole["plan"]["state"]) == ("f16", "8bit")
    again = tmp_path / "again"
    train(Settings(**options, checkpoint_every=5), again)
    for name in ("splats.ply", "metrics.json"):
        (again / name).unlink()
    (again / "checkpoints/step-00000012.npz").unlink()
    train(Settings(str(scene)), again, resume=True)
    assert (again / "splats.ply").read_bytes() == (tmp_path / "whole/splats.ply").read_bytes()
