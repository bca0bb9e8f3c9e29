"""``rung splat``: its commands, on files and scenes of a few splats."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rung.cli.app import main
from rung.core.errors import UsageError
from rung.splats import Cloud, read, write
from rung.splats.files import FORMATS
from rung.splats.scenes import sfm
from rung.splats.training import run as training


def ended(capsys, *arguments):
    with pytest.raises(SystemExit) as ending:
        main(["splat", *map(str, arguments)])
    said = capsys.readouterr()
    return ending.value.code or 0, said.out, said.err


@pytest.fixture
def ply(tmp_path):
    rng = np.random.default_rng(0)
    shapes = ((50, 3), (50, 4), (50, 3), (50,), (50, 9, 3))
    path = tmp_path / "scene.ply"
    write(path, Cloud(*(rng.standard_normal(shape).astype(np.float32) for shape in shapes)))
    return path


STEERING = "left out, not there: \x1b]0;title\x07\x1b[2J"


def test_names_of_photographs_do_not_steer_the_terminal(tmp_path, capsys, monkeypatch):
    def found(*arguments, note, **more):
        note(STEERING)
        return sfm.Placed(3, (), 1)

    monkeypatch.setattr(sfm, "reconstruct", found)
    code, _, err = ended(capsys, "sfm", tmp_path, "--out", tmp_path / "scene")
    assert (code, err) == (0, "left out, not there: \\x1b]0;title\\x07\\x1b[2J\n")

    def trained(*arguments, listener, **more):
        listener.note(STEERING)
        return training.Result(3, {}, True)

    monkeypatch.setattr(training, "train", trained)
    code, _, err = ended(capsys, "train", "demo", "--out", tmp_path / "run")
    assert (code, err) == (130, "left out, not there: \\x1b]0;title\\x07\\x1b[2J\n")


def test_one_of_a_kind_is_not_said_to_be_several(tmp_path, capsys, monkeypatch):
    image = {"name": "a.png", "psnr": 20.0, "ssim": 0.5, "lpips": None}
    facts = {"ply": "splats.ply", "splats": 1, "steps": 1, "seconds": 2.0, "psnr": 20.0, "ssim": 0.5, "images": [image]}
    monkeypatch.setattr(training, "train", lambda *arguments, **more: training.Result(1, facts, False))
    code, out, _ = ended(capsys, "train", "demo", "--out", tmp_path / "run")
    assert (code, out.splitlines()) == (
        0,
        [
            "splats.ply · 1 splat · 1 step, trained for 2 s",
            f"1 test picture: PSNR 20.00 dB, SSIM 0.500 · {tmp_path / 'run' / 'test'}",
        ],
    )


def test_info_says_what_a_file_holds(ply, capsys):
    code, out, _ = ended(capsys, "info", ply, "--json")
    facts = json.loads(out)
    assert (code, facts["splats"], facts["sh_degree"]) == (0, 50, 2)
    assert facts["bytes"] == ply.stat().st_size
    code, out, _ = ended(capsys, "info", ply)
    assert "50 splats, harmonics of degree 2" in out


@pytest.mark.parametrize("end", FORMATS)
def test_info_reads_every_format(end, ply, capsys):
    pytest.importorskip("PIL")
    file = ply.with_name(f"other{end}")
    write(file, read(ply))
    code, out, _ = ended(capsys, "info", file)
    assert code == 0
    assert f"50 splats, harmonics of degree {0 if end == '.splat' else 2}" in out


def test_info_of_a_file_that_is_not_there_says_so(tmp_path, capsys):
    code, _, err = ended(capsys, "info", tmp_path / "none.ply")
    assert code == 1
    assert "cannot be read: No such file" in err


def test_render_draws_a_bare_file_from_around(ply, tmp_path, capsys):
    code, out, _ = ended(capsys, "render", ply, "--out", tmp_path / "shown", "--frames", 2, "--size", "40x30")
    assert (code, out) == (0, f"{tmp_path / 'shown'} · 2 pictures\n")
    assert [path.name for path in sorted((tmp_path / "shown").iterdir())] == ["00000.png", "00001.png"]
    code, _, err = ended(capsys, "render", ply, "--out", tmp_path / "shown", "--cameras", "test")
    assert code == 2
    assert "no cameras of test" in err


def test_what_a_run_is_made_of_is_found_again_from_anywhere(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(training, "train", lambda settings, out, **more: calls.append(settings) or refuse())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "begin.ply").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "garden").mkdir()
    for scene, images in (("garden", "photos"), ("demo", "images_4")):
        ended(capsys, "train", scene, "--out", "run", "--init", "begin.ply", "--images", images)
    assert [each.scene for each in calls] == [str(tmp_path / "garden"), "demo"]
    assert [each.images for each in calls] == [str(tmp_path / "photos"), "images_4"]  # the latter may be in the scene
    assert {each.init for each in calls} == {str(tmp_path / "begin.ply")}


def test_what_is_on_the_command_line_is_asked_for_also_where_it_is_the_default(tmp_path, monkeypatch, capsys):
    typed = []
    monkeypatch.setattr(training, "train", lambda settings, out, **more: typed.append(more["typed"]) or refuse())
    ended(capsys, "train", "demo", "--out", tmp_path / "run", "--seed", "42", "--time", "30m")
    assert typed == [{"scene", "out", "seed", "seconds"}]


def test_a_scene_that_is_not_there_is_refused_before_anything_is_imported(tmp_path):
    words = "import sys; from rung.cli.app import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    call = [sys.executable, "-c", words, "splat", "train", str(tmp_path / "none"), "--out", str(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, "does not exist" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "run").exists()


def refuse():
    raise UsageError("no")
