"""Cameras found from photographs alone, compared with those that took them; what cannot be found; videos."""

import json
import subprocess
import zipfile

import numpy as np
import pytest
from PIL import Image, ImageFilter

from rung.cli.app import main
from rung.core.errors import BadFile, DiskFull, SoftwareMissing, UsageError
from rung.measure.pictures import ffmpeg
from rung.splats import scene
from rung.splats.scenes import sfm, video

WIDTH, HEIGHT, FOCAL = 320, 240, 300.0
VIEWS = 7


def texture(seed):
    """Blobs of every size, [256, 256, 3]."""
    rng, found = np.random.default_rng(seed), np.zeros((256, 256, 3))
    for cells in (8, 16, 32, 64, 128):
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8)).resize(
            (256, 256), Image.Resampling.BICUBIC
        )
        found += np.asarray(noise) / 5
    return found


def pose(index):
    """World to camera, around a corner of a room whose walls are x = 0, y = 0, z = 0."""
    angle = 0.5 + 0.06 * index
    eye = np.array([4 * np.cos(angle), 4 * np.sin(angle), 1.6 + 0.5 * np.sin(3.0 * index)])
    forward = np.array([0.6, 0.6, 0.7]) - eye
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0, 0, 1.0])
    right /= np.linalg.norm(right)
    turn = np.stack([right, np.cross(forward, right), forward])
    return np.concatenate([turn, -turn @ eye[:, None]], axis=1)


def photograph(world_to_camera, walls):
    v, u = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    rays = np.stack([(u - WIDTH / 2) / FOCAL, (v - HEIGHT / 2) / FOCAL, np.ones_like(u)], 2) @ world_to_camera[:, :3]
    eye = -world_to_camera[:, :3].T @ world_to_camera[:, 3]
    best, found = np.full((HEIGHT, WIDTH), np.inf), np.zeros((HEIGHT, WIDTH, 3))
    for axis, wall in enumerate(walls):
        distance = -eye[axis] / rays[..., axis]
        nearer = (distance > 0) & (distance < best)
        point = (eye + distance[..., None] * rays)[..., [a for a in range(3) if a != axis]]
        at = np.floor(np.abs(point) * 80).astype(int) % 256
        best = np.where(nearer, distance, best)
        found = np.where(nearer[..., None], wall[at[..., 0], at[..., 1]], found)
    return Image.fromarray(found.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.6))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    walls = [texture(seed) for seed in range(3)]
    for index in range(VIEWS):
        photograph(pose(index), walls).save(folder / f"{index}.png")
    return folder


def check(card):
    """Rotations between cameras and, but for the scale, their places are those of the truth."""
    found = [np.array(view.pose).reshape(3, 4) for view in card.views]
    want = [pose(int(view.name[0])) for view in card.views]
    turns = [a[:, :3].T @ b[:, :3] for a, b in zip(found, want, strict=True)]  # the same for all
    assert max(np.abs(turn - turns[0]).max() for turn in turns) < 0.02
    places = [np.stack([-each[:, :3].T @ each[:, 3] for each in poses]) for poses in (found, want)]
    mine, true = (positions - positions.mean(0) for positions in places)
    mine = mine @ turns[0]
    mine *= (mine * true).sum() / (mine * mine).sum()
    assert np.abs(mine - true).max() < 0.03
    assert abs(card.views[0].fx / FOCAL - 1) < 0.03
    assert card.points > 100


@pytest.fixture
def colmap():
    return pytest.importorskip("pycolmap")


@pytest.mark.parametrize("exhaustive", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_cameras_of_photographs_are_found(exhaustive, colmap, photographs, tmp_path, monkeypatch, capsys):
    if not exhaustive:
        monkeypatch.setattr(sfm, "_EXHAUSTIVE", 2)
        monkeypatch.setattr(sfm, "_FOLLOWING", 1)
        monkeypatch.setattr(sfm, "_ALIKE", 4)
    (tmp_path / "given").mkdir()
    for file in photographs.iterdir():
        (tmp_path / "given" / file.name).write_bytes(file.read_bytes())
    Image.fromarray(texture(9).astype(np.uint8)).resize((WIDTH, HEIGHT)).save(tmp_path / "given/elsewhere.png")
    (tmp_path / "given/broken.png").write_bytes(b"nothing")
    with pytest.raises(SystemExit) as ending:
        main(["splat", "sfm", str(tmp_path / "given"), "--out", str(tmp_path / "out"), "--json"])
    assert not ending.value.code
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert (facts["photographs"], facts["unplaced"]) == (VIEWS, ["broken.png", "elsewhere.png"])
    assert "no place found for broken.png, elsewhere.png" in said.err
    check(scene(tmp_path / "out"))
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {"images", "sparse"}
    with pytest.raises(UsageError, match="holds a scene already"):
        sfm.reconstruct(photographs, tmp_path / "out")
    assert sfm.posed(photographs, tmp_path / "out", threads=1, note=print) == tmp_path / "out"


def test_photographs_of_different_things_are_refused_by_name(colmap, tmp_path):
    for seed in range(4):
        Image.fromarray(texture(seed).astype(np.uint8)).save(tmp_path / f"{seed}.png")
    with pytest.raises(BadFile, match="only 0 of 4 photographs") as caught:
        sfm.reconstruct(tmp_path, tmp_path / "out")
    assert "not placed: 0.png, 1.png" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_and_a_kill_leave_no_half_of_a_scene(colmap, photographs, tmp_path, monkeypatch):
    (tmp_path / "out/.sfm-a_b1c2d3/images").mkdir(parents=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sfm, "map_photographs", full)
    with pytest.raises(DiskFull, match="No room for"):
        sfm.reconstruct(photographs, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_too_few_photographs_are_refused(colmap, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(BadFile, match="holds 1 photograph; places are found from 3"):
        sfm.reconstruct(tmp_path, tmp_path / "out")


def test_of_many_photographs_so_many_are_taken(colmap, photographs, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in photographs.iterdir():
            archive.write(file, file.name)
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    calls = []
    monkeypatch.setattr(sfm, "map_photographs", lambda module, work, names, *rest: calls.append(names))
    with pytest.raises(BadFile):
        sfm.reconstruct(tmp_path / "all.zip", tmp_path / "out", max_images=3)
    assert calls == [["0.png", "2.png", "4.png"]]


def test_without_pycolmap_the_way_to_it_is_said(photographs, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pycolmap", None)
    with pytest.raises(SoftwareMissing, match="pycolmap") as caught:
        sfm.reconstruct(photographs, tmp_path / "out")
    assert "rung[splats]" in str(caught.value)


def test_photographs_that_look_alike_are_neighbors():
    rng = np.random.default_rng(0)
    places = [rng.integers(0, 256, (200, 128)).astype(np.float32) for _ in range(3)]
    each = [places[index // 4][rng.permutation(200)[:150]] + rng.normal(0, 5, (150, 128)) for index in range(12)]
    each.append(np.zeros((0, 128)))
    pairs = sfm.alike_pairs([rows.astype(np.float32) for rows in each], 3)
    same = [(a, b) for a in range(12) for b in range(a + 1, 12) if a // 4 == b // 4]
    assert set(same) <= set(pairs)
    assert all(b == 12 for a, b in pairs if (a, b) not in same)


def test_the_sharpest_frames_of_a_video_are_taken(photographs, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "_LEAST", 4)
    sharp = (2, 3, 11, 13)
    for index in range(16):
        picture = Image.open(photographs / f"{index // 4}.png")
        picture = picture if index in sharp else picture.filter(ImageFilter.GaussianBlur(3))
        picture.save(tmp_path / f"{index:02}.png")
    path = tmp_path / "walk.mp4"
    arguments = ["-i", str(tmp_path / "%02d.png"), "-c:v", "libx264", "-crf", "10", "-pix_fmt", "yuv420p", str(path)]
    subprocess.run([ffmpeg(), "-v", "error", *arguments], check=True)
    (tmp_path / "out").mkdir()
    names = video.sharpest(path, tmp_path / "out")
    chosen = [int(name[6:12]) for name in names]
    assert chosen[0] in (2, 3)
    assert 4 <= chosen[1] < 8  # none of them is sharp
    assert chosen[2:] == [11, 13]
    found = np.asarray(Image.open(tmp_path / "out/frame_000011.png")).astype(int)
    assert np.abs(found - np.asarray(Image.open(tmp_path / "11.png"))).mean() < 6
    assert len(video.sharpest(path, tmp_path / "out", 2)) == 2


@pytest.mark.parametrize("data", [b"", b"no video at all" * 100])
def test_what_is_no_video_is_refused(data, tmp_path):
    (tmp_path / "a.mp4").write_bytes(data)
    with pytest.raises(BadFile, match="no video that ffmpeg can read"):
        video.sharpest(tmp_path / "a.mp4", tmp_path)


def test_photographs_with_blanks_in_their_names_are_compared(colmap, tmp_path):
    rng, names = np.random.default_rng(0), ["a b.png", "# c.png", "d.png"]
    places = (rng.random((300, 4)) * [640, 480, 1, 1]).astype(np.float32)
    features = colmap.FeatureDescriptors(
        colmap.FeatureExtractorType.SIFT, rng.integers(0, 100, (300, 128)).astype(np.uint8)
    )
    database = colmap.Database.open(str(tmp_path / "database.db"))
    camera = database.write_camera(colmap.Camera.create_from_model_name(1, "SIMPLE_PINHOLE", 100.0, 640, 480))
    numbers = [database.write_image(colmap.Image(name=name, camera_id=camera)) for name in names]
    for number in numbers:
        database.write_keypoints(number, places)
        database.write_descriptors(number, features)
    database.close()
    how = {"matching_options": colmap.FeatureMatchingOptions(num_threads=1, use_gpu=False), "device": colmap.Device.cpu}
    sfm.compare(colmap, tmp_path / "database.db", [("a b.png", "# c.png"), ("d.png", "broken.png")], **how)
    database = colmap.Database.open(str(tmp_path / "database.db"))
    assert {image.name for image in database.read_all_images()} == set(names)
    assert database.exists_matches(numbers[0], numbers[1])
    assert not database.exists_matches(numbers[0], numbers[2])
    database.close()
