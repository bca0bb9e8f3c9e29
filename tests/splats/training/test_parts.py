"""The parts of training against independent computations: loss, growth, neighbors, spaces, schedule."""

import numpy as np
import pytest
import torch

from rung.measure.metrics import ssim
from rung.splats.poses import focus, in_picture, pose_of
from rung.splats.training import checkpoint, initialization, loss, model, settings
from rung.splats.training.model import Corrections
from rung.splats.training.normalization import around
from rung.splats.training.strategies import divided
from tests.splats.training import tiny


@pytest.mark.parametrize("shape", [(40, 57, 3), (11, 11, 3), (9, 33, 3), (64, 16, 3)])
def test_the_compiled_loss_is_that_of_torch(shape):
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.rand(shape, generator=generator) for _ in range(2))
    window = min(11, *shape[:2])
    value, gradient = loss.plain(x, y, window)
    x.requires_grad_()
    found = loss.photometric(x, y)
    found.backward()
    assert float(found.detach()) == pytest.approx(float(value), abs=1e-6)
    assert torch.allclose(x.grad, gradient, rtol=1e-3, atol=2e-7)


@pytest.mark.parametrize("shape", [(1000, 16, 3), (700, 9, 3), (333, 3), (7,), (40, 4)])
def test_the_compiled_step_of_adam_is_torchs(shape):
    generator = torch.Generator().manual_seed(4)
    value, moved = torch.rand(shape, generator=generator), None
    rates = tuple(0.01 * (1 + at % 3) for at in range(value[0].numel()))
    ours = [value.clone(), torch.zeros(shape), torch.zeros(shape)]
    moved = torch.nn.Parameter(value.clone())
    optimizer = torch.optim.Adam([moved], lr=1.0, eps=model.EPSILON)
    for taken in range(1, 4):
        gradient = torch.randn(shape, generator=generator)
        before = moved.detach().clone()
        moved.grad = gradient
        optimizer.step()
        with torch.no_grad():
            moved.copy_(before + (moved - before) * torch.tensor(rates).view(shape[1:]))
        model.adam(ours[0], gradient, ours[1], ours[2], rates, taken)
    assert torch.allclose(ours[0], moved.detach(), atol=1e-5)


def test_the_loss_is_l1_and_ssim_as_measured():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (40, 57, 3)).astype(np.uint8) for _ in range(2))
    found = float(loss.photometric(*(torch.from_numpy(x).float() / 255 for x in (a, b))))
    expected = 0.8 * np.abs(a / 255 - b / 255).mean() + 0.2 * (1 - ssim(a[None], b[None]))
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shape", [(24, 31, 3), (7, 30, 3)])
def test_the_gradient_of_the_loss_is_that_of_differences(shape):
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.random(shape)).float().requires_grad_()
    y = torch.from_numpy(rng.random(shape)).float()
    loss.photometric(x, y).backward()
    size = 3e-3
    for _ in range(12):
        at = tuple(int(rng.integers(side)) for side in shape)
        if abs(float(x[at].detach() - y[at])) < 2 * size:  # where |x| bends
            continue
        high, low = x.detach().clone(), x.detach().clone()
        high[at] += size
        low[at] -= size
        slope = (float(loss.photometric(high, y)) - float(loss.photometric(low, y))) / (2 * size)
        assert float(x.grad[at]) == pytest.approx(slope, abs=3e-5)


@pytest.mark.parametrize(("opacity", "copies"), [(0.3, 2), (0.9, 5), (0.999, 20), (0.5, 51)])
def test_copies_of_a_splat_look_as_it_did(opacity, copies):
    """Through the middle they let as much light past, and over the whole line they cover as much."""
    arguments = torch.tensor([opacity]), torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([copies])
    each, scale = divided(*arguments)
    kept = float(each)
    line = np.linspace(-30, 30, 200_001)
    before = opacity * np.exp(-(line**2) / (2 * 0.7**2))
    after = 1 - (1 - kept * np.exp(-(line**2) / (2 * float(scale[0, 0]) ** 2))) ** copies
    assert 1 - (1 - kept) ** copies == pytest.approx(opacity, rel=1e-4)
    assert after.sum() == pytest.approx(before.sum(), rel=1e-3)
    assert float(scale[0, 1] / scale[0, 0]) == pytest.approx(0.2 / 0.7)


def test_neighbors_are_about_those_of_comparing_all():
    points = np.random.default_rng(2).standard_normal((600, 3)).astype(np.float32)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    expected = np.sqrt(np.sort(squares, axis=1)[:, 1:4].mean(1))
    ratio = initialization.apart(points) / expected
    assert (ratio > 0.999).all()
    assert np.median(ratio) < 1.3
    assert initialization.apart(points[:1]).tolist() == [1.0]
    assert np.isfinite(initialization.apart(np.repeat(points[:2], 3, axis=0))).all()


def test_random_points_lie_where_cameras_look():
    views = [tiny.view(tiny.camera(angle)) for angle in np.linspace(0, 5, 6)]
    pictures = [np.full((tiny.SIZE, tiny.SIZE, 3), 10 * number, np.uint8) for number in range(6)]
    points, colors = initialization.random_points(views, pictures, 200, np.random.default_rng(0))
    assert points.shape == colors.shape == (200, 3)
    assert (initialization.count_views(points, views) >= 3).all()
    assert np.abs(focus(views)).max() < 0.3


def test_cameras_that_look_the_same_way_focus_on_where_they_stand_not_on_the_origin():
    pose = np.eye(4)
    views = []
    for position in ([100.0, 5.0, 70.0], [102.0, 5.0, 70.0], [101.0, 8.0, 73.0]):
        pose[:3, 3] = position
        views.append(tiny.view(pose))
    assert focus(views) == pytest.approx([101.0, 6.0, 71.0])


def test_points_in_a_picture_are_those_whose_pixels_are():
    view = tiny.view(tiny.camera(1.0))
    points = np.random.default_rng(1).standard_normal((300, 3)) * 3
    inside, depths = in_picture(view, points)
    for point, found, depth in zip(points, inside, depths, strict=True):
        u, v, w = np.array([[52.0, 0, 24], [0, 52.0, 24], [0, 0, 1]]) @ (pose_of(view) @ [*point, 1])[:3]
        assert depth == pytest.approx(w)
        assert found == (w > 0 and 0 <= u / w < 48 and 0 <= v / w < 48)
    assert 0 < inside.sum() < 300


def test_the_inner_space_and_back():
    views = [tiny.view(tiny.camera(angle, far=30.0)) for angle in np.linspace(0, 5, 6)]
    cloud = tiny.cloud()
    world = around(views, cloud.means)
    back = world.outer(world.inner(cloud))
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(back, cloud, strict=True))
    for view in views:
        pose, inner = pose_of(view), world.pose(view)
        there = cloud.means @ pose[:3, :3].T + pose[:3, 3]
        here = world.inner(cloud).means @ inner[:3, :3].T + inner[:3, 3]
        assert np.allclose(here * world.extent, there, atol=1e-4)
        assert np.allclose(world.outer_pose(inner), view.pose, atol=1e-4)


def test_the_schedule_is_the_published_one_at_its_length():
    assert settings.rates(0, 30_000) == {**settings.RATES, "means": pytest.approx(1.6e-4)}
    assert settings.rates(1, 60_000) == {**settings.RATES, "means": pytest.approx(1.6e-6)}
    assert [settings.degree(step / 30_000, 3) for step in (0, 999, 1000, 2500, 29_999)] == [0, 0, 1, 2, 3]
    beat = settings.Beat(100 / 30_000, 500 / 30_000, 25_000 / 30_000)
    fell, last = [], 0
    for step in range(1, 30_001):
        if beat.falls(step, (step - 1) / 30_000, step / 30_000, last):
            fell.append(last := step)
    assert len(fell) == 244
    assert min(fell) == 600
    assert max(fell) == 24_900


def test_in_a_short_run_centers_come_as_far_as_in_a_long_one():
    whole = 30_000 * settings.rates(0, 30_000)["means"]
    assert [steps * settings.rates(0, steps)["means"] for steps in (15_000, 2_000, 1_000)] == pytest.approx([whole] * 3)
    assert settings.rates(0, 10)["means"] == pytest.approx(30 * 1.6e-4)
    assert settings.rates(0.5, 30_000 // 16)["logits"] == pytest.approx(2 * 5e-2)


def test_a_corrected_pose_is_a_rotation_and_nothing_at_the_beginning():
    fixed = Corrections(3, True, True, torch.device("cpu"))
    pose = torch.from_numpy(pose_of(tiny.view(tiny.camera(1.0)))).float()
    assert torch.equal(fixed.moved(1, pose), pose)
    color = torch.rand(4, 5, 3)
    assert torch.allclose(fixed.exposed(1, color), color)
    with torch.no_grad():
        fixed.values["pose"][1] = torch.tensor([0.3, -0.2, 0.1, 1.0, 2.0, 3.0])
    turned = fixed.moved(1, pose)[:3, :3]
    assert torch.allclose(turned @ turned.T, torch.eye(3), atol=1e-5)
    assert not torch.allclose(turned, pose[:3, :3], atol=0.05)


def test_a_checkpoint_that_something_damaged_is_passed_over(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, checkpoint.Checkpoint({"model/means": np.ones((3, 3), np.float32)}, {"step": step}))
    path = tmp_path / "checkpoints" / "step-00000002.npz"
    whole, found = path.read_bytes(), set()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x29]) + whole[position + 1 :])
        found.add(checkpoint.newest(tmp_path).facts["step"])
    assert found == {1, 2}  # a date may change
