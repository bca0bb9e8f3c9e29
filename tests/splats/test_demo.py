"""The scene that comes along: photographs and points that say the same."""

import numpy as np

from rung.splats import demo, scene
from rung.splats.photographs import Photographs
from rung.splats.poses import pose_of
from rung.splats.scenes.colmap import points_of
from rung.splats.training.initialization import count_views


def test_the_points_have_the_colors_that_the_photographs_show(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "VIEWS", 3)
    demo.make(tmp_path)
    card = scene(tmp_path)
    points, colors = points_of(card)
    assert (len(card.views), card.views[0].width, card.views[0].height) == (3, demo.SIZE, demo.SIZE)
    assert len(points) >= 1000
    assert (count_views(points, card.views) > 0).all()
    shots, nearest = Photographs(card, 1 << 30), np.full(len(points), np.inf)
    for number, view in enumerate(card.views):
        pose, shot = pose_of(view), shots.shot(number)
        x, y, z = (points @ pose[:3, :3].T + pose[:3, 3]).T
        places = np.stack([view.fx * x / z + view.cx, view.fy * y / z + view.cy])
        column, row = places.astype(int).clip(0, demo.SIZE - 1)
        assert 0.2 < (shot.alpha > 0).mean() < 1
        nearest = np.minimum(nearest, np.abs(shot.rgb[row, column].astype(int) - colors).max(axis=1))
    assert np.median(nearest) < 8
