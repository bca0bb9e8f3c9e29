"""Pictures of trained scenes as files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rung.core.errors import UsageError
from rung.models.card import View
from rung.splats import Cloud, write
from rung.splats.render import draw, draw_all
from rung.splats.trained import trained

Image = pytest.importorskip("PIL.Image")
POSE = (1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)


def view(name, **changed):
    facts = {"width": 32, "height": 24, "fx": 30.0, "fy": 30.0, "cx": 16.0, "cy": 12.0, **changed}
    return View(name, "", pose=POSE, **facts)


@pytest.fixture
def run(tmp_path):
    """A folder as training leaves it: two splats, the right one farther away, and three cameras."""
    parts = ([[-0.5, 0, 2], [0.8, 0, 4]], [[1, 0, 0, 0]] * 2, [[math.log(0.3)] * 3] * 2, [4.0, 4.0])
    cloud = Cloud(*(np.array(part, np.float32) for part in parts), np.full((2, 1, 3), 0.5, np.float32))
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder / "splats.ply", cloud)
    views = [view("in/a.jpg"), view("in/b.jpg", fx=40.0), view("../c.jpg", width=16)]
    (folder / "cameras.json").write_text(json.dumps([each.to_json() for each in views]))
    (folder / "config.json").write_text(json.dumps({"settings": {"antialiased": True, "background": "white"}}))
    return folder


def drawn(result, out, views=None, background=(1.0, 1.0, 1.0), depth=False):
    done = []
    number = draw_all(result, views or result.views, out, background, depth, 10, done.append)
    assert done == list(range(1, number + 1))
    return number


def test_a_picture_for_each_camera_in_its_place(run, tmp_path):
    result = trained(run)
    assert (result.antialiased, result.background, len(result.views)) == (True, "white", 3)
    assert drawn(result, tmp_path / "out") == 3
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.png")}
    assert found == {"in/a.png", "in/b.png", "c.png"}
    with Image.open(tmp_path / "out" / "in" / "a.png") as picture:
        assert np.array_equal(np.array(picture), draw(result.cloud, result.views[0], (1, 1, 1), antialiased=True))


def test_photographs_that_differ_in_their_suffix_alone_keep_it(run, tmp_path):
    drawn(trained(run), tmp_path / "out", [view("a.jpg"), view("a.png")])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.jpg.png", "a.png.png"}


def test_depth_is_brighter_nearby_and_black_where_nothing_is(run, tmp_path):
    drawn(trained(run), tmp_path / "out", [view("a")], depth=True)
    with Image.open(tmp_path / "out" / "a.png") as picture:
        gray = np.array(picture)
    near, far = gray[12, 8], gray[12, 21]
    assert near.min() == near.max() > 200
    assert far.max() < 60
    assert gray[0, 31].max() == 0


def test_a_file_alone_has_no_cameras_and_a_black_ground(run, tmp_path):
    lonely = tmp_path / "lonely.ply"
    lonely.write_bytes((run / "splats.ply").read_bytes())
    result = trained(lonely)
    assert (result.views, result.antialiased, result.background) == ((), False, "black")
    assert len(trained(run / "splats.ply").views) == 3  # one in a run's folder has the run's


def test_a_video_has_a_frame_for_each_camera(run, tmp_path):
    result = trained(run)
    drawn(result, tmp_path / "x.gif", result.views[:2])
    with Image.open(tmp_path / "x.gif") as video:
        assert (video.n_frames, video.size) == (2, (32, 24))
    with pytest.raises(UsageError, match="several sizes"):
        drawn(result, tmp_path / "x.gif")


@pytest.mark.parametrize("name", ["x.png", "x.avi", "there"])
def test_what_is_no_folder_is_refused(name, run, tmp_path):
    (tmp_path / "there").touch()
    with pytest.raises(UsageError, match="no folder"):
        drawn(trained(run), tmp_path / name)


def test_a_folder_that_cannot_be_made_is_said(run, tmp_path, monkeypatch):
    def refused(self, **_):
        raise PermissionError(13, "Permission denied")

    result = trained(run)
    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(UsageError, match="pictures cannot be written: Permission denied"):
        drawn(result, tmp_path / "pictures")


def test_a_folder_without_splats_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no splats"):
        trained(tmp_path)
