"""Cameras of a run, of an orbit and of files, held against where they must stand."""

import json
import math

import numpy as np
import pytest

from rung.core.errors import BadFile, UsageError
from rung.models.card import View
from rung.splats import Cloud
from rung.splats.cameras import chosen, frame, of_run, orbit


def cloud(number=400, at=(3.0, 0.0, 1.0)):
    rng = np.random.default_rng(0)
    means = (rng.standard_normal((number, 3)) + at).astype(np.float32)
    return Cloud(means, *(np.zeros((number, *shape), np.float32) for shape in ((4,), (3,), (), (1, 3))))


def eye(view):
    pose = np.array(view.pose).reshape(3, 4)
    return -pose[:, :3].T @ pose[:, 3]


def projected(view, point):
    x, y, z = np.array(view.pose).reshape(3, 4) @ [*point, 1]
    return view.fx * x / z + view.cx, view.fy * y / z + view.cy, z


def test_an_orbit_of_a_bare_cloud_looks_at_its_middle_from_all_sides():
    scene = cloud()
    views = orbit((), scene, 12)
    middle = np.median(scene.means, axis=0)
    assert len({view.name for view in views}) == 12
    for view in views:
        across, down, ahead = projected(view, middle)
        assert (across, down) == (pytest.approx(view.width / 2), pytest.approx(view.height / 2))
        assert ahead == pytest.approx(2 * np.quantile(np.linalg.norm(scene.means - middle, axis=1), 0.9))
        assert eye(view)[1] < middle[1]  # y is down: it stands above
        assert projected(view, middle - [0, 0.1, 0])[1] < view.height / 2  # and nothing is upside down
    assert np.allclose(np.mean([eye(view) for view in views], axis=0)[[0, 2]], middle[[0, 2]], atol=1e-6)


def test_an_orbit_follows_the_cameras_of_the_run():
    """Cameras on a ring around (1, 2, 3) whose up is z."""
    ring = []
    for number in range(9):
        angle = 2 * math.pi * number / 9
        position = np.array([1 + 5 * math.cos(angle), 2 + 5 * math.sin(angle), 3 + 2.0])
        ahead = (np.array([1, 2, 3]) - position) / math.sqrt(29)
        right = np.cross(ahead, [0, 0, 1]) / np.linalg.norm(np.cross(ahead, [0, 0, 1]))
        turn = np.stack([right, np.cross(ahead, right), ahead])
        pose = tuple(np.concatenate([turn, -(turn @ position)[:, None]], axis=1).reshape(-1))
        ring.append(View(f"{number}.jpg", "", 320, 200, 300.0, 310.0, 150.0, 110.0, pose))
    center, up, distance = frame(ring, cloud())
    assert center == pytest.approx([1, 2, 3], abs=0.05)
    assert up == pytest.approx([0, 0, 1], abs=1e-6)
    assert distance == pytest.approx(math.sqrt(29), abs=0.05)
    first = orbit(ring, cloud(), 5)[0]
    assert (first.width, first.height, first.fx, first.cx) == (320, 200, 300.0, 160.0)
    assert eye(first)[2] > 3


def test_parallel_cameras_and_one_alone_are_looked_at_somewhere():
    pose = (1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
    one = View("a", "", 4, 4, 1.0, 1.0, 2.0, 2.0, pose)
    for views in ([one], [one, one]):
        assert all(math.isfinite(number) for view in orbit(views, cloud(), 3) for number in view.pose)
    assert all(math.isfinite(number) for view in orbit((), cloud(0), 3) for number in view.pose)


def view(name, split, **changed):
    facts = {"width": 40, "height": 30, "fx": 35.0, "fy": 36.0, "cx": 20.0, "cy": 15.0, **changed}
    return View(name, "", pose=(1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0), split=split, **facts)


def test_cameras_of_a_run_by_what_they_were_for(tmp_path):
    views = (view("a", "train"), view("b", "test"), view("c", ""))
    (tmp_path / "cameras.json").write_text(json.dumps([each.to_json() for each in views]))
    assert of_run(tmp_path) == views
    assert [each.name for each in chosen("test", views, cloud())] == ["b"]
    assert chosen(str(tmp_path / "cameras.json"), (), cloud()) == views
    large = chosen("train", views, cloud(), (160, 60))[0]
    assert (large.width, large.height, large.fx, large.fy, large.cx, large.cy) == (160, 60, 70.0, 72.0, 80.0, 30.0)
    with pytest.raises(UsageError, match="no cameras of test"):
        chosen("test", views[:1], cloud())
    assert of_run(tmp_path / "elsewhere") == ()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '[{"name": "a"}]',
        json.dumps([view("a", "", fx=-1.0).to_json()]),
        json.dumps([view("a", "", width=0).to_json()]),
    ],
)
def test_a_list_of_cameras_that_is_none_is_refused(text, tmp_path):
    (tmp_path / "cameras.json").write_text(text)
    with pytest.raises(BadFile, match="camera"):
        of_run(tmp_path)


def test_cameras_of_transforms_and_of_colmap_need_no_photographs(tmp_path):
    matrix = np.eye(4)
    matrix[:3, 3] = 1, 2, 3
    transforms = {
        "fl_x": 30,
        "w": 40,
        "h": 20,
        "k1": 0.1,
        "frames": [{"file_path": "a/b.png", "transform_matrix": matrix.tolist()}],
    }
    (tmp_path / "transforms.json").write_text(json.dumps(transforms))
    for where in (tmp_path, tmp_path / "transforms.json"):
        (found,) = chosen(str(where), (), cloud())
        assert (found.name, found.lens, found.fx) == ("a/b.png", "pinhole", 30)
        assert eye(found) == pytest.approx([1, 2, 3])
        assert projected(found, (1, 2, 2))[:2] == pytest.approx((20, 10))  # it looks along -z
    model = tmp_path / "colmap" / "sparse" / "0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text("1 PINHOLE 40 20 30 31 20 10\n")
    (model / "images.txt").write_text("1 1 0 0 0 0.5 0 2 1 c.jpg\n\n")
    (found,) = chosen(str(tmp_path / "colmap"), (), cloud())
    assert (found.name, found.fy) == ("c.jpg", 31)
    assert eye(found) == pytest.approx([-0.5, 0, -2])


def path_of_nerfstudio(**changed):
    matrix = np.eye(4)
    matrix[:3, 3] = 1, 2, 3
    frames = [{"camera_to_world": matrix.reshape(-1).tolist(), "fov": 90, "aspect": 1.5}]
    return {"camera_type": "perspective", "render_height": 20, "render_width": 30, "camera_path": frames} | changed


def test_a_camera_path_of_nerfstudio(tmp_path):
    file = tmp_path / "path.json"
    file.write_text(json.dumps(path_of_nerfstudio()))
    (found,) = chosen(str(file), (), cloud())
    assert (found.width, found.height) == (30, 20)
    assert found.fy == pytest.approx(10)  # 90 degrees from top to bottom
    assert eye(found) == pytest.approx([1, 2, 3])
    assert projected(found, (1, 3, 2))[1] == pytest.approx(0)  # up is y


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"camera_type": "equirectangular"}, "equirectangular"),
        ({"camera_path": []}, "no cameras"),
        ({"camera_path": [{"fov": 90}]}, "camera_to_world"),
        ({"camera_path": [{"fov": 0, "camera_to_world": [1] * 16}]}, "no camera path"),
        ({"camera_path": [{"fov": 50, "camera_to_world": [1] * 16}]}, "no rotation"),
        ({"render_width": 0}, "0 x 20"),
    ],
)
def test_a_camera_path_that_is_none_is_refused(changed, words, tmp_path):
    (tmp_path / "path.json").write_text(json.dumps(path_of_nerfstudio(**changed)))
    with pytest.raises((BadFile, UsageError), match=words):
        chosen(str(tmp_path / "path.json"), (), cloud())


def test_a_name_without_cameras_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no cameras in"):
        chosen(str(tmp_path / "nothing"), (), cloud())
