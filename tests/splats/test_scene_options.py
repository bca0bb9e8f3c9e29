"""Test options of scenes: masks, smaller pictures, fewer of them, zip files, RealityCapture's csv, wrong axes."""

import io
import json
import math
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from rung.core.errors import BadFile, RungError, UnsafeFile
from rung.splats import scene
from rung.splats.photographs import Photographs
from rung.splats.scenes import archive
from rung.splats.scenes.colmap import points_of
from tests.splats.test_scenes import CAMERA, NAMES, binary, check, pictures, text, transforms
from tests.support.devices import fresh_cache


def mask(path, value=255):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (64, 48), value).save(path)
    return str(path)


@pytest.mark.parametrize("name", ["photo 1.png", "photo 1.png.png"])
def test_masks_lie_beside_the_photographs_under_their_names(name, tmp_path):
    pictures(tmp_path / "images")
    binary(tmp_path / "sparse/0")
    want = mask(tmp_path / "masks" / name, 9)
    card = scene(tmp_path)
    assert [view.mask for view in card.views] == ["", want, "", "", "", ""]
    assert f"1 of 6 photographs have a mask in {tmp_path / 'masks'}" in card.notes
    assert (Photographs(card, 2**20).shot(1).alpha == 9).all()


def test_masks_of_two_cameras_are_not_taken_for_each_other(tmp_path):
    pictures(tmp_path / "images/images_left")
    text(tmp_path / "sparse/0")
    listed = tmp_path / "sparse/0/images.txt"
    listed.write_text(listed.read_text().replace("photo ", "images_left/photo "))
    want = mask(tmp_path / "masks/images_left/photo 1.png")
    mask(tmp_path / "masks/images_right/photo 2.png")
    assert [view.mask for view in scene(tmp_path).views] == ["", want, "", "", "", ""]


def test_masks_of_transforms(tmp_path):
    pictures(tmp_path / "images")
    data = transforms()
    data["frames"][2]["mask_path"] = "elsewhere.png"
    mask(tmp_path / "masks/photo 1.png")
    mask(tmp_path / "masks/photo 2.png")
    (tmp_path / "transforms.json").write_text(json.dumps(data))
    masks = [view.mask for view in scene(tmp_path).views]
    assert masks == ["", str(tmp_path / "masks/photo 1.png"), str(tmp_path / "elsewhere.png"), "", "", ""]


@pytest.mark.parametrize("where", ["images_4", "{scene}/images_4"])
@pytest.mark.parametrize("kind", ["colmap", "transforms"])
def test_smaller_pictures_scale_the_camera(kind, where, tmp_path):
    (tmp_path / "images_4").mkdir()
    for name in NAMES:
        Image.new("RGB", (16, 12)).save(tmp_path / "images_4" / name)
    if kind == "colmap":
        text(tmp_path / "sparse/0")
    else:
        (tmp_path / "transforms.json").write_text(json.dumps(transforms()))
    card = scene(tmp_path, images=where.format(scene=tmp_path))
    view = Photographs(card, 2**20).views[0]
    assert (view.width, view.height, view.fx, view.fy) == (16, 12, CAMERA[2] / 4, CAMERA[3] / 4)
    assert (view.cx, view.cy) == (CAMERA[4] / 4, CAMERA[5] / 4)


def test_fewer_photographs(tmp_path):
    pictures(tmp_path / "images")
    text(tmp_path)
    names = lambda **options: [int(view.name.split()[1][0]) for view in scene(tmp_path, **options).views]  # noqa: E731
    assert names(subsample=2) == [0, 2, 4]
    assert names(max_images=3) == [0, 2, 4]
    assert names(max_images=4) == [0, 1, 3, 4]
    assert names(subsample=2, max_images=2) == [0, 2]
    assert names(max_images=9) == [0, 1, 2, 3, 4, 5]
    assert "taken are 2 of 6 photographs" in scene(tmp_path, subsample=3).notes


def test_one_photograph_is_a_scene_and_said_to_be_one(tmp_path):
    pictures(tmp_path / "images")
    (tmp_path / "transforms.json").write_text(json.dumps(transforms(frames=transforms()["frames"][:1])))
    assert "one photograph: nothing says how far away things are" in scene(tmp_path).notes


def test_cameras_that_look_away_from_every_point_are_refused(tmp_path):
    pictures(tmp_path / "images")
    text(tmp_path)
    lines = ["7 PINHOLE 64 48 55 56 31.5 24.5"]
    (tmp_path / "cameras.txt").write_text(lines[0])
    images = [f"{i} 1 0 0 0 {0.1 * i} 0 0 7 {name}\n" for i, name in enumerate(NAMES)]
    (tmp_path / "images.txt").write_text("\n".join(images) + "\n")
    (tmp_path / "points3D.txt").write_text("1 0 0 -5 9 9 9 0.5\n2 0.1 0 -4 9 9 9 0.5\n")
    with pytest.raises(BadFile, match="look away from the points") as caught:
        scene(tmp_path)
    assert "6 of 6 cameras have every point behind them" in str(caught.value)
    (tmp_path / "points3D.txt").write_text("1 0 0 5 9 9 9 0.5\n2 0.1 0 -4 9 9 9 0.5\n")
    assert scene(tmp_path).points == 2


def zipped(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return path


def picture():
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, "PNG")
    return file.getvalue()


cache = fresh_cache()


@pytest.mark.parametrize("top", ["", "garden/"])
def test_a_zip_file_is_unpacked_once_without_what_is_no_part_of_a_scene(top, tmp_path, monkeypatch):
    entries = {f"{top}images/{name}": picture() for name in NAMES}
    entries |= {f"{top}transforms.json": json.dumps(transforms()), f"{top}run.sh": "rm -rf /"}
    path = zipped(tmp_path / "scene.zip", entries)
    card = scene(path)
    check(card, "transforms")
    assert card.path == str(path)  # a command names it, and the cache may lose what it holds
    monkeypatch.setattr(archive, "extract_entry", None)
    assert scene(path) == card
    assert not list((tmp_path / "cache").rglob("run.sh"))


@pytest.mark.parametrize("name", ["../transforms.json", "a/../../b.png", "/etc/b.png", "C:\\b.png", "..\\b.png"])
def test_a_zip_file_whose_names_lead_out_of_it_is_refused(name, tmp_path):
    with pytest.raises(UnsafeFile, match="leads out of it"):
        scene(zipped(tmp_path / "scene.zip", {name: "x"}))
    assert not (tmp_path / "cache/transforms.json").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    with pytest.raises(UnsafeFile, match="would become"):
        scene(zipped(tmp_path / "scene.zip", {"transforms.json": bytes(80 * 2**20)}))
    path = zipped(tmp_path / "lies.zip", {"transforms.json": bytes(2**20)})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 100)
    path.write_bytes(data)
    with pytest.raises(BadFile, match=r"larger than it declares|no zip file"):
        scene(path)
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip_file_is_refused_whatever_is_damaged(method, tmp_path):
    path, found = tmp_path / "scene.zip", set()
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("ü.txt", "a")
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x81]) + whole[position + 1 :])
        with pytest.raises((BadFile, UnsafeFile)) as caught:
            scene(path)
        found.add(str(caught.value).splitlines()[0])
    assert any("is no zip file that can be read" in said for said in found)
    assert not any("None" in said for said in found)


def test_two_processes_may_unpack_the_same_zip_file(tmp_path, monkeypatch):
    path = zipped(tmp_path / "scene.zip", {"images/a.png": picture()})
    extract, quicker = archive.extract_entry, []

    def meanwhile(*arguments):
        monkeypatch.setattr(archive, "extract_entry", extract)
        quicker.append(archive.unpacked(path))
        extract(*arguments)

    monkeypatch.setattr(archive, "extract_entry", meanwhile)
    assert [archive.unpacked(path)] == quicker
    assert [entry.name for entry in quicker[0].parent.iterdir()] == [quicker[0].name]


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9])
def test_a_zip_file_that_ends_too_soon_is_refused(cut, tmp_path):
    data = zipped(tmp_path / "scene.zip", {"images/a.png": picture()}).read_bytes()
    (tmp_path / "scene.zip").write_bytes(data[: int(cut * len(data))])
    with pytest.raises(BadFile, match="no zip file"):
        scene(tmp_path / "scene.zip")


HEAD = "#name,x,y,alt,heading,pitch,roll,f,px,py,k1,k2,k3,k4,t1,t2"


def csv(folder, *rows):
    pictures(folder / "images")
    (folder / "cameras.csv").write_text("\n".join([HEAD, *(",".join(map(str, row)) for row in rows)]))


def test_realitycapture(tmp_path):
    csv(
        tmp_path,
        (NAMES[0], 1, 2, 3, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0),
        (NAMES[1], 1, 2, 3, 90, 90, 0, 27, 0.9, -0.45, 0.1, 0, 0, 0, 0.2, 0),
        (NAMES[2], 1, 2, 3, 30, 40, 50, 27, 0, 0, 0, 0, 0.3, 0, 0, 0),
    )
    card = scene(tmp_path)
    assert card.kind == "realitycapture"
    down, east, third = card.views
    # down: the picture's right is east, its down is south, forward is down
    assert np.allclose(np.array(down.pose).reshape(3, 4), [[1, 0, 0, -1], [0, -1, 0, 2], [0, 0, -1, 3]])
    assert (down.width, down.height, down.fx, down.fy, down.cx, down.cy, down.lens) == (
        64,
        48,
        64,
        64,
        32,
        24,
        "pinhole",
    )
    # the horizon in the east: right is south, down is down
    assert np.allclose(np.array(east.pose).reshape(3, 4)[:, :3], [[0, -1, 0], [0, 0, -1], [1, 0, 0]])
    assert (east.fx, east.cx, east.cy) == pytest.approx((48, 33.6, 23.2))
    assert (east.lens, east.bend, third.bend) == ("opencv", (0.1, 0, 0.2, 0), (0, 0, 0, 0, 0.3, 0))
    turn = np.array(third.pose).reshape(3, 4)[:, :3]
    assert np.allclose(turn @ turn.T, np.eye(3))
    assert math.isclose(turn[2, 2], -math.cos(math.radians(40)) * math.cos(math.radians(50)))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((NAMES[0], "nan", 2, 3, 0, 0, 0, 36), "line 2: x is 'nan'"),
        ((NAMES[0], 1, 2, 3, 0, 0, 0, -1), "focal length of -1"),
        ((NAMES[0], 1, 2), "alt is None"),
        (("", 1, 2, 3, 0, 0, 0, 36), "no name"),
        (("gone.png", 1, 2, 3, 0, 0, 0, 36), "1 of 1 photograph are not there"),
        (("a" * 200_000, 1, 2, 3, 0, 0, 0, 36), "is no csv"),
    ],
)
def test_realitycapture_that_is_wrong(row, words, tmp_path):
    csv(tmp_path, row)
    with pytest.raises(BadFile) as caught:
        scene(tmp_path)
    assert words in str(caught.value)


def test_every_radial_term_of_transforms_counts(tmp_path):
    pictures(tmp_path / "images")
    (tmp_path / "transforms.json").write_text(json.dumps(transforms(k3=0.2)))
    assert scene(tmp_path).views[0].bend == (0, 0, 0, 0, 0.2, 0)


def json_scene(folder):
    (folder / "transforms.json").write_text(
        json.dumps(transforms(k1=0.1, k3=0.01, train_filenames=[f"images/{NAMES[0]}"]))
    )


def csv_scene(folder):
    csv(folder, *((name, 1, 2, 3, 0, 0, 0, 36, 0, 0, 0.1, 0, 0, 0, 0, 0) for name in NAMES))


@pytest.mark.parametrize("write", [binary, text, json_scene, csv_scene])
def test_whatever_is_changed_in_a_scene_nothing_but_a_refusal_comes_of_it(write, tmp_path):
    pictures(tmp_path / "images")
    write(tmp_path)
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    rng = np.random.default_rng(5)
    odd = [b"", b"-", b"1e999", b"null", b"[]", b"{}", b"\xff\xff\xff\xff", b"\0", b'"', b",", b"\n", b" ", b"nan"]
    for file in files:
        whole, refused = file.read_bytes(), 0
        for _ in range(120):
            begin = int(rng.integers(len(whole)))
            end = begin + int(rng.integers(1, 9))
            file.write_bytes(whole[:begin] + odd[rng.integers(len(odd))] + whole[end:])
            try:
                scene(tmp_path)
            except RungError:
                refused += 1
        assert refused > 20
        file.write_bytes(whole)


HEADER = "ply\nformat ascii 1.0\ncomment x\nelement vertex 3\n"
HEADER += "".join(f"property float {n}\n" for n in "xyz") + "".join(
    f"property uint8 {n}\n" for n in ("red", "green", "blue")
)


def points_scene(folder, rows, header=HEADER):
    pictures(folder / "images")
    frames = [
        frame | {"transform_matrix": np.eye(4).tolist()} for frame in transforms()["frames"]
    ]  # they look along -z
    (folder / "transforms.json").write_text(json.dumps(transforms(frames=frames, ply_file_path="sparse_pc.ply")))
    (folder / "sparse_pc.ply").write_text(f"{header}end_header\n{rows}")


def test_points_in_text_as_nerfstudio_writes_them(tmp_path):
    points_scene(tmp_path, "0 0 -5 1 2 3\n1.5 nan -5 4 5 6\n1 2 -3e0 7 8 255\n")
    card = scene(tmp_path)
    centers, colors = points_of(card)
    assert card.points == 2
    assert centers.tolist() == [[0, 0, -5], [1, 2, -3]]
    assert colors.tolist() == [[1, 2, 3], [7, 8, 255]]
    points_scene(tmp_path, "0 0 -5\n0 0 5\n1 1 1\n", HEADER[: HEADER.index("property uint8")])
    assert points_of(scene(tmp_path))[1].tolist() == [[128] * 3] * 3
    (tmp_path / "sparse_pc.ply").unlink()
    bare = scene(tmp_path)
    assert (bare.points, bare.points_file) == (0, "")
    assert f"its points are not there: {tmp_path / 'sparse_pc.ply'}" in bare.notes


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        ("0 0 5 1 2 3\n0 0 6 1 2 3\n0 0 7 1 2 3\n", HEADER, "6 of 6 cameras have every point behind them"),
        ("0 0 -5 1 2 3\n", HEADER, "declares 3 points of 6 numbers"),
        ("0 0 -5 1 2 3\n0 0 what 1 2 3\n", HEADER, "no numbers"),
        ("0 0 -5 1 2 3\n", HEADER.replace("3", "1000000000000"), "1,000,000,000,000 points, more than it can hold"),
        ("0 0 -5 1 2 3\n" * 3, HEADER.replace("float x", "float a"), "no x, y, z"),
    ],
)
def test_points_that_are_wrong(rows, header, words, tmp_path):
    points_scene(tmp_path, rows, header)
    with pytest.raises(BadFile) as caught:
        scene(tmp_path)
    assert words in str(caught.value)
