"""Cameras that look straight down from a grid: their axes meet nowhere, and the ground says how far they look."""

import json

import numpy as np
import pytest
from PIL import Image

from rung.models.card import View
from rung.splats import read
from rung.splats.photographs import Shot
from rung.splats.poses import converge, places, pose_of, reaches
from rung.splats.training import initialization
from rung.splats.training.run import train
from rung.splats.training.settings import Settings
from tests.splats.training import tiny

WIDTH, HEIGHT, FOCAL, HIGH = 64, 48, 60.0, 30.0
DOWN = np.diag([1.0, -1.0, -1.0])


def survey(rows, columns, overlap=0.75, turn=DOWN):
    """Views from ``HIGH`` above the ground z = 0, a row of the flight after the other."""
    views = []
    across, along = ((1 - overlap) * side * HIGH / FOCAL for side in (WIDTH, HEIGHT))
    for at in range(rows * columns):
        stand = np.array([at % columns * across, at // columns * along, HIGH])
        pose = np.column_stack([turn, -turn @ stand]).reshape(-1).tolist()
        views.append(View(f"{at:03d}.png", "", WIDTH, HEIGHT, FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2, tuple(pose)))
    return views


def photographed(view):
    """The ground has a pattern that does not come again."""
    down, across = np.meshgrid(np.arange(HEIGHT) + 0.5, np.arange(WIDTH) + 0.5, indexing="ij")
    rays = np.stack([(across - view.cx) / FOCAL, (down - view.cy) / FOCAL, np.ones_like(across)], -1)
    rays, stand = rays @ pose_of(view)[:3, :3], places([view])[0]
    there = (stand - rays * (stand[2] / rays[..., 2])[..., None])[..., :2]
    rng = np.random.default_rng(7)
    waves, begin = rng.normal(0, 0.7, (3, 24, 2)), rng.uniform(0, 2 * np.pi, (3, 24))
    tones = np.sin(np.einsum("cnk,hwk->hwcn", waves, there) + begin).sum(-1) / 8 + 0.5
    return (np.clip(tones, 0, 1) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def twelve():
    views = survey(3, 4)
    return views, [photographed(view) for view in views]


def test_they_look_about_as_far_as_pictures_of_neighbors_overlap_by_two_thirds():
    assert reaches(survey(3, 4, 2 / 3)) == pytest.approx([HIGH] * 12)
    assert not converge(survey(3, 4))
    ring = [tiny.view(tiny.camera(angle, far=3.0)) for angle in np.linspace(0, 5, 6)]
    assert converge(ring)
    assert reaches(ring) == pytest.approx([3.0] * 6, rel=0.1)


@pytest.mark.parametrize("views", [survey(1, 1), survey(1, 1) * 3], ids=["alone", "in one place"])
def test_cameras_without_a_neighbor_look_as_far_as_training_takes_its_space_to_be(views):
    assert reaches(views).tolist() == [1.0] * len(views)


def test_points_are_found_on_the_ground(twelve):
    views, pictures = twelve
    points, _ = initialization.matched_points(views, [Shot(picture, None) for picture in pictures])
    assert len(points) > 0.5 * len(views) * WIDTH * HEIGHT
    assert np.median(np.abs(points[:, 2])) < 0.02 * HIGH


def test_random_points_lie_before_the_cameras_on_both_sides_of_the_ground(twelve):
    points, _ = initialization.random_points(*twelve, 200, np.random.default_rng(0))
    assert len(points) == 200
    assert 0.1 < (points[:, 2] > 0).mean() < 0.9
    assert points[:, 2].max() < HIGH


def test_of_many_those_are_compared_that_stand_side_by_side():
    views = survey(12, 20)
    chosen = initialization._compared(views, np.random.default_rng(0))
    assert len(set(chosen)) == len(chosen) == 40
    stands = places([views[at] for at in chosen])
    away = np.linalg.norm(stands[:, None] - stands, axis=2)
    away[away == 0] = np.inf
    assert away.min(1).max() <= 0.25 * WIDTH * HIGH / FOCAL + 1e-6


@pytest.mark.slow
def test_a_survey_without_points_is_learned(twelve, tmp_path):
    frames = []
    for view, picture in zip(*twelve, strict=True):
        Image.fromarray(picture).save(tmp_path / view.name)
        pose = np.linalg.inv(pose_of(view)) @ np.diag([1.0, -1.0, -1.0, 1.0])
        frames.append({"file_path": view.name, "transform_matrix": pose.tolist()})
    transforms = {"w": WIDTH, "h": HEIGHT, "fl_x": FOCAL, "fl_y": FOCAL, "frames": frames}
    (tmp_path / "transforms.json").write_text(json.dumps(transforms))
    settings = Settings(str(tmp_path), steps=300, max_splats=3000, threads=1, eval_split=6)
    done = train(settings, tmp_path / "run")
    assert done.metrics["psnr"] > 20
    assert np.median(np.abs(read(tmp_path / "run" / "splats.ply").means[:, 2])) < 0.1 * HIGH
