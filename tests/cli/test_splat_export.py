"""``rung splat export``: files, edits and the loss that it says."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rung.core.errors import DiskFull
from rung.models.card import View
from rung.splats import Cloud, read, write
from rung.splats.edit import Move
from rung.splats.export import Edits, Export
from rung.splats.trained import Trained

from .test_splat import ended


@pytest.fixture
def scene(tmp_path):
    """80 splats around the origin, as large as a fifth of it."""
    rng = np.random.default_rng(0)
    shapes = {"means": (80, 3), "quats": (80, 4), "scales": (80, 3), "logits": (80,), "harmonics": (80, 4, 3)}
    means, quats, scales, logits, harmonics = (
        rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()
    )
    write(tmp_path / "scene.ply", Cloud(means, quats, scales * 0.3 - 1.5, logits + 1, harmonics * 0.4))
    return tmp_path / "scene.ply"


@pytest.mark.parametrize(("end", "least"), [("ply", 100), ("compressed.ply", 45), ("spz", 38), ("splat", 15)])
def test_a_scene_in_another_format_says_what_it_lost(end, least, scene, capsys):
    out = scene.with_name(f"out.{end}")
    code, said, _ = ended(capsys, "export", scene, out, "--json")
    facts = json.loads(said)
    assert (code, facts["splats"], facts["source_splats"], facts["views"]) == (0, 80, 80, 8)
    assert facts["bytes"] == out.stat().st_size
    assert least <= facts["psnr"] <= 100
    assert len(read(out).means) == 80


def test_edits_are_made_in_their_order(scene, capsys):
    out, original = scene.with_name("out.ply"), read(scene)
    more = ["--crop=-1,-1,-1,1,1,1", "--scale", "2", "--rotate", "0,0,90", "--translate=-5,0,0", "--sh-degree", "0"]
    code, said, _ = ended(capsys, "export", scene, scene, out, *more, "--max-splats", "20", "--prune-opacity", "0.5")
    back = read(out)
    inside = original.means[(np.abs(original.means) <= 1).all(1)]
    places = inside[:, [1, 0, 2]] * [-2, 2, 2] - [5, 0, 0]
    assert code == 0
    assert f"{len(back.means)} splats of 160" in said
    assert "dB PSNR against the source over 8 views of an orbit" in said
    assert 0 < len(back.means) <= 20
    assert back.degree == 0
    assert back.opacities.min() >= 0.5
    assert all(np.abs(places - mean).max(1).min() < 1e-5 for mean in back.means)


def test_a_scene_that_did_not_change_says_so(scene, capsys):
    _, said, _ = ended(capsys, "export", scene, scene.with_name("out.ply"))
    assert "no difference over 8 views of an orbit" in said
    _, said, _ = ended(capsys, "export", scene, scene.with_name("out.ply"), "--quiet")
    assert said == ""


def test_a_runs_cameras_move_with_it(scene):
    pose = (1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 5.0)
    views = tuple(View(f"{i}", "", 40, 30, 40.0, 40.0, 20.0, 15.0, pose, lens="opencv") for i in range(70))
    source = Trained(scene, read(scene), views, {"background": "white"})
    still = Export([source], Edits(max_splats=40))
    turned = Export([source], Edits(max_splats=40, move=Move((1, 2, 3), (10, 20, 30), 2.0)))
    assert turned.views[0].lens == "pinhole"
    assert turned.views[0] != replace(still.views[0])
    for export, name in ((still, "a.ply"), (turned, "b.ply")):
        export.save(scene.with_name(name))
    (one, number), (other, _) = still.loss(scene.with_name("a.ply")), turned.loss(scene.with_name("b.ply"))
    assert number == 24  # every third: at most 32
    assert one == pytest.approx(other, abs=0.3)
    assert one < 60


def test_a_page_holds_the_cameras(scene, capsys):
    out = scene.with_name("page.html")
    code, said, _ = ended(capsys, "export", scene, out)
    assert code == 0
    assert out.read_text("utf-8").lstrip().lower().startswith("<!doctype html")
    assert "no difference" in said


def test_a_page_numbers_the_cameras_of_training(scene):
    pose = (1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 5.0)
    parts = {"tested": "test", "neither": "", "first": "train", "second": "train"}
    views = tuple(View(name, "", 40, 30, 40.0, 40.0, 20.0, 15.0, pose, split=part) for name, part in parts.items())
    out = scene.with_name("page.html")
    Export([Trained(scene, read(scene), views, {})], Edits()).save(out)
    assert re.findall(r'"name": "(\w+)"', out.read_text("utf-8")) == ["first", "second", "first"]  # and where it begins


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["out.obj"], "no file of splats that rung knows"),
        (["scene.ply"], "is one of the sources"),
        (["out.ply", "--crop", "1,2,3"], "--crop 1,2,3 is no list of 6 numbers"),
        (["out.ply", "--rotate", "1,2,x"], "is no list of 3 numbers"),
        (["out.ply", "--translate", "0,nan,0"], "is no list of 3 numbers"),
        (["out.ply", "--scale", "0"], "--scale 0 is no scale"),
        (["out.ply", "--crop", "90,90,90,99,99,99"], "None of the 80 splats is left"),
        (["nowhere/out.ply"], "cannot be written: No such file"),
    ],
)
def test_what_cannot_be_exported_is_refused(arguments, words, scene, capsys):
    before = sorted(scene.parent.iterdir())
    code, _, err = ended(capsys, "export", scene, scene.parent / arguments[0], *arguments[1:])
    assert code == 2
    assert words in err
    assert sorted(scene.parent.iterdir()) == before


def test_a_file_without_splats_is_not_exported(tmp_path, capsys):
    empty = Cloud(*(np.zeros((0, *shape), np.float32) for shape in ((3,), (4,), (3,), (), (1, 3))))
    write(tmp_path / "empty.ply", empty)
    code, _, err = ended(capsys, "export", tmp_path / "empty.ply", tmp_path / "out.spz")
    assert (code, "The source has no splats" in err) == (2, True)


def test_a_full_disk_leaves_nothing_behind(scene, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    export = Export([Trained(scene, read(scene), (), {})], Edits())
    with pytest.raises(DiskFull, match=r"No room for .*out\.ply"):
        export.save(scene.with_name("out.ply"))
    assert [path.name for path in scene.parent.iterdir()] == ["scene.ply"]
