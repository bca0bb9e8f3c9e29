"""Scenes of every kind that say the same of the same cameras, and every way in which they can be wrong."""

import json
import math
import struct

import numpy as np
import pytest
from PIL import Image

from rung.core.errors import BadFile
from rung.splats import scene
from rung.splats.scenes import colmap

RNG = np.random.default_rng(4)
QUATS = RNG.standard_normal((6, 4))
SHIFTS = RNG.standard_normal((6, 3))
NAMES = [f"photo {index}.png" for index in range(6)]
CAMERA = (64, 48, 55.0, 56.0, 31.5, 24.5)


def rotation(quat):
    """By the axis and the angle of a quaternion: Rodrigues' formula."""
    w, *axis = quat / np.linalg.norm(quat)
    angle = 2 * math.acos(w)
    x, y, z = np.array(axis) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def pictures(folder):
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48)).save(folder / name)


def binary(folder, model=1, parameters=CAMERA[2:]):
    folder.mkdir(parents=True, exist_ok=True)
    cameras = struct.pack("<QIiQQ", 1, 7, model, *CAMERA[:2]) + struct.pack(f"<{len(parameters)}d", *parameters)
    (folder / "cameras.bin").write_bytes(cameras)
    data = struct.pack("<Q", 6)
    for index in range(6):
        data += struct.pack("<I7dI", index + 1, *QUATS[index], *SHIFTS[index], 7) + NAMES[index].encode() + b"\0"
        data += struct.pack("<Q", index) + bytes(24 * index)
    (folder / "images.bin").write_bytes(data)
    data = struct.pack("<Q", 3)
    for index in range(3):
        data += struct.pack("<Q3d3BdQ", index, *SHIFTS[index], 9, 8, index, 0.5, index) + bytes(8 * index)
    (folder / "points3D.bin").write_bytes(data)


def text(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cameras.txt").write_text("# comment\n7 PINHOLE 64 48 55 56 31.5 24.5\n")
    lines = ["# comment"]
    for index in range(6):
        numbers = " ".join(repr(float(value)) for value in (*QUATS[index], *SHIFTS[index]))
        lines += [f"{index} {numbers} 7 {NAMES[index]}", "" if index % 2 else "1.5 2.5 -1"]
    (folder / "images.txt").write_text("\n".join(lines) + "\n\n")
    rows = [f"{i} {' '.join(repr(float(v)) for v in SHIFTS[i])} 9 8 {i} 0.5 1 2" for i in range(3)]
    (folder / "points3D.txt").write_text("\n".join(rows))


def frames():
    found = []
    for index in range(6):
        world = np.eye(4)
        world[:3, :3] = rotation(QUATS[index]).T
        world[:3, 3] = -world[:3, :3] @ SHIFTS[index]
        world[:3, 1:3] *= -1  # right, up, backward
        found.append({"file_path": f"images/{NAMES[index]}", "transform_matrix": world.tolist()})
    return found


def transforms(**changed):
    camera = dict(zip(("w", "h", "fl_x", "fl_y", "cx", "cy"), CAMERA, strict=True))
    return {"camera_model": "OPENCV", **camera, "frames": frames()} | changed


def check(card, kind):
    assert card.kind == kind
    assert [view.name.split("/")[-1] for view in card.views] == NAMES
    for index, view in enumerate(card.views):
        assert (view.width, view.height, view.fx, view.fy, view.cx, view.cy) == CAMERA
        assert (view.lens, view.bend) == ("pinhole", ())
        pose = np.array(view.pose).reshape(3, 4)
        assert np.abs(pose[:, :3] - rotation(QUATS[index])).max() < 1e-6
        assert np.abs(pose[:, 3] - SHIFTS[index]).max() < 1e-6


@pytest.mark.parametrize("folder", [".", "sparse", "sparse/0", "colmap/sparse/0"])
@pytest.mark.parametrize("write", [binary, text])
def test_colmap(write, folder, tmp_path):
    pictures(tmp_path / "images")
    write(tmp_path / folder)
    card = scene(tmp_path)
    check(card, "colmap")
    assert card.points == 3
    centers, colors = colmap.points(tmp_path / folder)
    assert np.array_equal(centers, SHIFTS[:3].astype(np.float32))
    assert colors.tolist() == [[9, 8, 0], [9, 8, 1], [9, 8, 2]]


def test_the_largest_model_is_taken_and_said(tmp_path):
    pictures(tmp_path / "photos")
    binary(tmp_path / "sparse/0")
    binary(tmp_path / "sparse/1")
    data = (tmp_path / "sparse/0/images.bin").read_bytes()
    end = data.index(b"\0", 8 + 64) + 1 + 8
    (tmp_path / "sparse/0/images.bin").write_bytes(struct.pack("<Q", 1) + data[8:end])
    card = scene(tmp_path, images=tmp_path / "photos")
    check(card, "colmap")
    assert "2 models; taken is the largest" in card.notes[0]
    assert "sparse/1" in card.notes[0]


@pytest.mark.parametrize(
    ("model", "parameters", "lens", "bend"),
    [
        (0, (50.0, 30, 20), "pinhole", ()),
        (2, (50.0, 30, 20, 0.1), "opencv", (0.1, 0, 0, 0)),
        (3, (50.0, 30, 20, 0.1, -0.2), "opencv", (0.1, -0.2, 0, 0)),
        (4, (50.0, 51, 30, 20, 0.1, 0.2, 0.3, 0.4), "opencv", (0.1, 0.2, 0.3, 0.4)),
        (5, (50.0, 51, 30, 20, 0.1, 0.2, 0.3, 0.4), "fisheye", (0.1, 0.2, 0.3, 0.4)),
    ],
)
def test_lenses(model, parameters, lens, bend, tmp_path):
    pictures(tmp_path / "images")
    binary(tmp_path, model, parameters)
    view = scene(tmp_path).views[0]
    assert (view.fx, view.cx, view.cy) == (50, 30, 20)
    assert (view.lens, view.bend) == (lens, bend)


def test_transforms(tmp_path):
    pictures(tmp_path / "images")
    data = transforms(train_filenames=[f"images/{NAMES[0]}"], test_filenames=[f"images/{NAMES[1]}"])
    data["frames"][2] |= {"fl_x": 60.0, "mask_path": "masks/2.png"}
    (tmp_path / "transforms.json").write_text(json.dumps(data))
    card = scene(tmp_path)
    assert [view.split for view in card.views[:3]] == ["train", "test", ""]
    assert (card.views[2].fx, card.views[2].mask) == (60.0, str(tmp_path / "masks/2.png"))
    data["frames"][2].pop("fl_x")
    (tmp_path / "transforms.json").write_text(json.dumps(data))
    check(scene(tmp_path), "transforms")


def test_blender(tmp_path):
    pictures(tmp_path / "images")
    each = frames()
    for frame in each:
        frame["file_path"] = frame["file_path"].removesuffix(".png")
    angle = 2 * math.atan(0.5 * 64 / 55)
    for split, part in (("train", each[:4]), ("test", each[4:])):
        (tmp_path / f"transforms_{split}.json").write_text(json.dumps({"camera_angle_x": angle, "frames": part}))
    card = scene(tmp_path)
    assert [view.split for view in card.views] == ["train"] * 4 + ["test"] * 2
    assert {(view.width, view.height, round(view.fx, 6), view.cx) for view in card.views} == {(64, 48, 55.0, 32.0)}


def test_photographs_that_are_not_there(tmp_path):
    pictures(tmp_path / "images")
    binary(tmp_path)
    (tmp_path / "images" / NAMES[2]).unlink()
    with pytest.raises(BadFile, match="1 of 6 photographs are not there") as caught:
        scene(tmp_path)
    assert NAMES[2] in str(caught.value)
    with pytest.raises(BadFile, match="6 of 6 photographs"):
        scene(tmp_path, images=tmp_path / "elsewhere")


def test_a_folder_without_a_scene_says_what_was_looked_for(tmp_path):
    with pytest.raises(BadFile, match="holds no scene") as caught:
        scene(tmp_path)
    assert "sparse/cameras.bin" in str(caught.value)


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin", "points3D.bin"])
def test_every_beginning_of_a_binary_file_is_refused(file, tmp_path):
    pictures(tmp_path / "images")
    binary(tmp_path)
    whole = (tmp_path / file).read_bytes()
    for length in range(len(whole)):
        (tmp_path / file).write_bytes(whole[:length])
        with pytest.raises(BadFile, match=file):
            scene(tmp_path)


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("images.bin", struct.pack("<Q", 2**60), "declares 1,152,921,504,606,846,976 entries"),
        ("cameras.bin", struct.pack("<QIiQQ", 1, 7, 99, 64, 48) + bytes(32), "unknown model 99"),
        ("cameras.bin", struct.pack("<QIiQQ5d", 1, 7, 7, 64, 48, *[1.0] * 5), "the model FOV"),
        ("cameras.bin", struct.pack("<QIiQQ4d", 1, 7, 1, 64, 48, math.nan, 1, 1, 1), "64 x 48 with the parameters"),
        ("cameras.bin", struct.pack("<QIiQQ4d", 1, 7, 1, 0, 48, *[1.0] * 4), "0 x 48"),
        ("cameras.bin", struct.pack("<QIiQQ4d", 1, 8, 1, 64, 48, *[1.0] * 4), "camera 7, which is not there"),
    ],
)
def test_numbers_that_lie(file, data, words, tmp_path):
    pictures(tmp_path / "images")
    binary(tmp_path)
    (tmp_path / file).write_bytes(data)
    with pytest.raises(BadFile) as caught:
        scene(tmp_path)
    assert words in str(caught.value)
    assert caught.value.ways_out != BadFile.usual_ways  # those are about models


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"frames": 3}, "no list of frames"),
        ({"fl_x": "wide"}, "fl_x is 'wide'"),
        ({"fl_x": -1.0, "fl_y": 2.0}, "focal length of -1"),
        ({"w": 0}, "picture of 0 x 48"),
        ({"camera_model": "ORTHO"}, "camera_model is 'ORTHO'"),
        ({"frames": [{"file_path": "a.png", "transform_matrix": [[math.inf] * 4] * 4}]}, "no rotation"),
        ({"frames": [{"file_path": "a.png", "transform_matrix": np.zeros((4, 4)).tolist()}]}, "no rotation"),
        ({"frames": [{"transform_matrix": np.eye(4).tolist()}]}, "file_path is None"),
        ({"frames": []}, "none that took a photograph"),
        ({"cx": 10**400}, "cx is 1"),
        ({"camera_model": ["PINHOLE"]}, "camera_model is"),
        ({"train_filenames": 5}, "train_filenames is no list of names"),
        ({"test_filenames": [["a.png"]]}, "test_filenames is no list of names"),
        ({"frames": [{"file_path": "a.png", "transform_matrix": [[10**400] * 4] * 4}]}, "no rotation"),
        ({"frames": [{"file_path": "/", "transform_matrix": np.eye(4).tolist()}]}, "file_path is '/'"),
        ({"frames": [{"file_path": "a" * 5000, "transform_matrix": np.eye(4).tolist()}]}, "cannot be read"),
    ],
)
def test_transforms_that_are_wrong(changed, words, tmp_path):
    pictures(tmp_path / "images")
    (tmp_path / "transforms.json").write_text(json.dumps(transforms(**changed)))
    with pytest.raises(BadFile) as caught:
        scene(tmp_path)
    assert words in str(caught.value)
