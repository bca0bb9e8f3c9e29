"""``rung check SCENE``: a choice for each resolution, without torch and without opening a picture."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from rung.cli import check_scene

POSE = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]]


@pytest.fixture
def photographs(tmp_path):
    """A scene of 12 pictures that are said to be 800 x 600; they hold nothing."""
    frames = [{"file_path": f"images/{n:02}.jpg", "transform_matrix": POSE} for n in range(12)]
    (tmp_path / "images").mkdir()
    for frame in frames:
        (tmp_path / frame["file_path"]).write_bytes(b"")
    transforms = {"w": 800, "h": 600, "fl_x": 700, "frames": frames}
    (tmp_path / "transforms.json").write_text(json.dumps(transforms), encoding="utf-8")
    return str(tmp_path)


def test_the_keys_that_scripts_read(rung, photographs):
    said = rung("check", photographs, "--device", "3060", "--device", "p2200", "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert found["photographs"] == 12
    sizes = [size for size in ((800, 600), (400, 300), (200, 150)) for _ in range(2)]
    assert [(c["width"], c["height"]) for c in found["choices"]] == 2 * sizes
    assert [c["format"] for c in found["choices"]] == 6 * ["f32", "f32+sh16"]
    totals = [c["memory"]["total"] for c in found["choices"]]
    assert all(halves < full for full, halves in zip(totals[::2], totals[1::2], strict=True))
    for choice in found["choices"]:
        assert {"format", "device", "fits", "level", "verdict", "memory", "speed", "error_db", "command"} <= set(choice)
        assert choice["seconds"] == pytest.approx(choice["steps"] / choice["steps_per_second"], rel=1e-2)
        assert choice["memory"]["total"] == sum(choice["memory"].values()) - choice["memory"]["total"]
    best = found["choices"][found["best"]]
    assert (best["device"], best["width"]) == ("geforce-rtx-3060-12gb", 800)
    assert set(found["best_by_device"]) == {"geforce-rtx-3060-12gb", "quadro-p2200"}


def test_as_a_table_with_the_command_last(rung, photographs):
    said = rung("check", photographs, "--device", "3060")
    lines = said.out.splitlines()
    assert " on a GeForce RTX 3060 12GB: yes, with pictures of 800 x 600" in lines[0]
    assert "12 photographs" in lines[1]
    assert "800 x 600" in lines[3]
    assert lines[-2].endswith(f"rung splat train {photographs} --out DIR --device cuda:0 --max-resolution 800")


def test_details_have_steps_in_the_place_of_tokens(rung, photographs):
    command = ("check", photographs, "--device", "3060")
    choice = json.loads(rung(*command, "--json").out)["choices"][1]
    lines = rung(*command, "--details").out.split("400 x 300")[0].splitlines()
    at = lines.index("800 x 600, f32+sh16 on GeForce RTX 3060 12GB: yes")
    speed = next(line for line in lines[at:] if line.startswith("  speed"))
    assert f"{choice['steps_per_second']:.3g} steps/s" in speed
    assert speed.endswith(f"for {choice['steps']:,} steps · ± 50%")
    assert f"  command  {choice['command']}" in lines[at:]


def test_the_command_of_another_format_names_it_and_a_budget_is_kept(rung, photographs):
    command = ("check", photographs, "--device", "3060", "--memory", "4.5GB")
    first, other = json.loads(rung(*command, "--json").out)["choices"][:2]
    assert "--format" not in first["command"]
    assert other["command"].endswith("--format f32+sh16 --memory=4.5GB")
    only = json.loads(rung(*command, "--format", "f32+sh16", "--json").out)
    assert {c["format"] for c in only["choices"]} == {"f32+sh16"}
    assert only["choices"][only["best"]]["command"].endswith("--format f32+sh16 --memory=4.5GB")


def test_exit_code_1_and_what_would_help_where_nothing_fits(rung, photographs):
    said = rung("check", photographs, "--device", "cpu", "--memory", "100MB")
    assert said.code == 1
    assert "the smallest plan needs" in said.out
    assert "--memory" in said.out.splitlines()[-1]


def test_a_card_is_refused_that_cannot_compute_and_several_are_not_one(rung, photographs):
    said = rung("check", photographs, "--device", "2x3060", "--json")
    assert said.code == 1
    assert {c["verdict"]["reason"] for c in json.loads(said.out)["choices"]} == {"splats are trained on one device"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "q4_k"), "--format f32"),
        (("--training", "lora"), "--training"),
        (("--context", "100"), "--context"),
        (("--trace",), "--trace"),
    ],
)
def test_bad_questions(rung, photographs, arguments, words):
    said = rung("check", photographs, "--device", "p2200", *arguments)
    assert said.code == 2
    assert words in said.err


def test_the_page_has_a_column_for_each_resolution(rung, photographs, tmp_path):
    page = tmp_path / "page.html"
    assert rung("check", photographs, "--device", "p2200", "--html", str(page)).code == 0
    text = page.read_text("utf-8")
    assert all(f"<td>{size}</td>" in text for size in ("800 x 600", "400 x 300", "200 x 150"))


def test_every_card_of_the_catalog(rung, photographs):
    said = rung("check", photographs, "--fits", "--json")
    found = json.loads(said.out)
    able = [index for index in found["best_by_device"].values() if index is not None]
    assert len(able) > 100
    assert all(math.isfinite(found["choices"][index]["steps_per_second"]) for index in able)


def test_torch_is_not_loaded(photographs):
    script = (
        "import sys\nfrom rung.cli.app import main\n"
        f"try:\n    main(['check', {photographs!r}, '--device', 'p2200'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(len({'torch', 'numba', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True).returncode == 0


def test_a_folder_with_the_csv_of_realitycapture_is_a_scene(tmp_path):
    assert not check_scene.is_scene(str(tmp_path))
    (tmp_path / "cameras.csv").write_text("#name,x,y,alt\n")
    assert check_scene.is_scene(str(tmp_path))


def test_a_model_with_a_table_beside_it_is_no_scene(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "results.csv").write_text("task,score\nmmlu,0.5\n")
    assert not check_scene.is_scene(str(tmp_path))


def test_a_scene_in_the_only_folder_of_a_folder(tmp_path):
    (tmp_path / "garden" / "sparse").mkdir(parents=True)
    assert check_scene.is_scene(str(tmp_path))
    (tmp_path / "other").mkdir()
    assert not check_scene.is_scene(str(tmp_path))
