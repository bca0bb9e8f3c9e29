"""Points where pictures agree, held against the surface that was photographed."""

import numpy as np

from rung.splats.photographs import Shot
from rung.splats.poses import places, pose_of
from rung.splats.training import initialization
from tests.splats.training import tiny

_VIEWS = [tiny.view(tiny.camera(angle, far=3.0)) for angle in np.linspace(0.0, 0.9, 6)]


def photographed(view):
    """A plane through the origin, x + z / 2 = 0, with a pattern: what the camera sees, and where, [H, W, 3] each."""
    pose, normal = pose_of(view), np.array([1.0, 0.0, 0.5])
    down, across = np.meshgrid(*[np.arange(tiny.SIZE) + 0.5] * 2, indexing="ij")
    rays = np.stack([(across - view.cx) / view.fx, (down - view.cy) / view.fy, np.ones_like(across)], -1)
    rays, stand = rays @ pose[:3, :3], places([view])[0]
    places_there = stand + rays * (-(stand @ normal) / (rays @ normal))[..., None]
    x, y, z = np.moveaxis(places_there, -1, 0)
    tones = [np.sin(9 * y + 5 * z) + np.sin(7 * z - 4 * y * y), np.sin(11 * z + 3 * y), np.cos(8 * y * z + x)]
    return (np.clip(np.stack(tones, -1) / 4 + 0.5, 0, 1) * 255).astype(np.uint8), places_there


def test_points_lie_on_the_surface_and_have_its_colors():
    shots = [Shot(photographed(view)[0], None) for view in _VIEWS]
    points, colors = initialization.matched_points(_VIEWS, shots)
    assert len(points) > 0.5 * len(_VIEWS) * tiny.SIZE**2
    away = np.abs(points @ [1.0, 0.0, 0.5]) / np.hypot(1.0, 0.5)
    assert np.median(away) < 0.02
    assert np.quantile(away, 0.95) < 0.1
    picture, there = photographed(_VIEWS[2])
    nearest = ((there.reshape(-1, 1, 3) - points[None, ::50]) ** 2).sum(-1)
    close = nearest.min(0) < 0.02**2
    of_picture = picture.reshape(-1, 3)[nearest.argmin(0)][close].astype(int)
    assert close.sum() > 20
    assert np.median(np.abs(of_picture - colors[::50][close])) < 12


def test_what_is_masked_or_plain_gives_no_points():
    half = np.zeros((tiny.SIZE, tiny.SIZE), np.uint8)
    half[: tiny.SIZE // 2] = 255
    views = _VIEWS[:3]
    pictures = [photographed(view)[0] for view in views]
    whole, _ = initialization.matched_points(views, [Shot(picture, None) for picture in pictures])
    masked, _ = initialization.matched_points(views, [Shot(picture, half) for picture in pictures])
    assert 0 < len(masked) < 0.6 * len(whole)
    plain = [Shot(np.full_like(picture, 90), None) for picture in pictures]
    assert [len(part) for part in initialization.matched_points(views, plain)] == [0, 0]
    assert [len(part) for part in initialization.matched_points(views[:1], plain[:1])] == [0, 0]
