"""Pictures of splats as files hold them, and what is measured of them, against values by hand."""

import json
import math
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from rung.cli.app import main
from rung.core.errors import BadFile, UsageError
from rung.measure.metrics import ssim
from rung.models.card import View
from rung.splats import Cloud, write
from rung.splats.evaluate import evaluate, evaluate_run
from rung.splats.render import Painter, color, draw, eight_bits
from rung.splats.trained import trained

POSE = (1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
VIEW = View("a.png", "", 33, 21, 30.0, 30.0, 16.5, 10.5, POSE)
C0 = 0.28209479177387814


def one(mean=(0.0, 0.0, 2.0), scale=0.1, opacity=0.5, rgb=(1.0, 0.5, 0.0), degree=1):
    harmonics = np.zeros((1, (degree + 1) ** 2, 3), np.float32)
    harmonics[0, 0] = (np.array(rgb) - 0.5) / C0
    logit = math.log(opacity / (1 - opacity))
    parts = ([mean], [[1, 0, 0, 0]], np.full((1, 3), math.log(scale)), [logit])
    return Cloud(*(np.array(part, np.float32) for part in parts), harmonics)


def test_a_splat_before_the_camera_is_where_and_what_it_should_be():
    colors, depths = Painter(one()).paint(VIEW, (0.0, 0.0, 1.0))
    assert colors.shape == (21, 33, 3)
    assert colors[10, 16] == pytest.approx([0.5, 0.25, 0.5], abs=1e-5)  # its center is this pixel's
    sigma2 = (30 * 0.1 / 2) ** 2 + 0.3
    share = 0.5 * math.exp(-9 / (2 * sigma2))
    assert colors[10, 19] == pytest.approx([share, share / 2, 1 - share], abs=1e-4)
    assert depths[10, 16] == pytest.approx(2.0, abs=1e-5)
    assert (depths[0, 0], colors[0, 0].tolist()) == (0, [0, 0, 1])


def test_harmonics_above_the_asked_degree_do_not_show():
    bent = one()
    bent.harmonics[0, 2] = 0.4  # z: brighter from this side
    assert draw(bent, VIEW)[10, 16, 1] > draw(bent, VIEW, degree=0)[10, 16, 1]
    assert np.array_equal(draw(bent, VIEW, degree=0), draw(one(degree=0), VIEW))


def test_antialiasing_dims_a_splat_smaller_than_a_pixel():
    small = one(scale=0.005)
    assert draw(small, VIEW, antialiased=True).max() < 0.5 * draw(small, VIEW).max()


def test_eight_bits_round_and_cut_off():
    assert eight_bits(np.array([-1, 0.49 / 255, 0.51 / 255, 1, 7], np.float32)).tolist() == [0, 0, 1, 255, 255]


def test_a_background_by_name_and_by_numbers():
    assert (color("white"), color("0.2, 0,1")) == ((1, 1, 1), (0.2, 0, 1))
    for words in ("red", "1,2,3", "0.1,0.2", "nan,0,0"):
        with pytest.raises(UsageError, match="no background"):
            color(words)


class Shots:
    def __init__(self, *shots):
        self._shots = shots

    def shot(self, index):
        return self._shots[index]


def photograph(change=0, alpha=None, cloud=None, background=(0.0, 0.0, 0.0)):
    rgb = draw(cloud or one(), VIEW, background).astype(int) + change
    return SimpleNamespace(rgb=rgb.clip(0, 255).astype(np.uint8), alpha=alpha)


def test_a_photograph_that_is_off_by_four_values():
    calls = []
    shots = Shots(photograph(), photograph(4))
    views = [VIEW, VIEW]
    found = evaluate(one(), views, shots, [1], see=lambda view, drawn, truth: calls.append((drawn, truth)))
    assert found["psnr"] == pytest.approx(20 * math.log10(255 / 4), abs=1e-6)
    assert found["ssim"] == ssim(calls[0][0][None], calls[0][1][None])
    assert found["lpips"] is None
    assert [(image["name"], image["psnr"]) for image in found["images"]] == [("a.png", found["psnr"])]
    assert np.array_equal(calls[0][1].astype(int) - calls[0][0], np.full((21, 33, 3), 4))
    both = evaluate(one(), views, shots, [0, 1])
    assert both["images"][0]["psnr"] == 100
    assert both["psnr"] == pytest.approx((100 + found["psnr"]) / 2)


def test_without_images_there_is_nothing_to_say():
    assert evaluate(one(), [], Shots(), []) == {"psnr": None, "ssim": None, "lpips": None, "images": []}


def test_what_is_masked_counts_for_nothing():
    alpha = np.full((21, 33), 255, np.uint8)
    alpha[:, :11] = 0
    shot = photograph(4, alpha)
    shot.rgb[:, :11] = 200
    found = evaluate(one(), [VIEW], Shots(shot), [0])
    assert found["psnr"] == pytest.approx(20 * math.log10(255 / 4), abs=1e-6)
    nothing = evaluate(one(), [VIEW], Shots(photograph(4, np.zeros_like(alpha))), [0])
    assert nothing["psnr"] == 100


def test_what_is_transparent_lies_on_the_background():
    white = (1.0, 1.0, 1.0)
    shot = SimpleNamespace(rgb=np.zeros((21, 33, 3), np.uint8), alpha=np.zeros((21, 33), np.uint8))
    nothing = one(mean=(0.0, 0.0, -2.0))
    assert evaluate(nothing, [VIEW], Shots(shot), [0], background=white, transparent=lambda view: True)["psnr"] == 100


def test_a_mask_and_a_transparent_picture_of_one_scene_are_each_what_they_are():
    white, alpha = (1.0, 1.0, 1.0), np.zeros((21, 33), np.uint8)
    shot = SimpleNamespace(rgb=np.zeros((21, 33, 3), np.uint8), alpha=alpha)
    views, maxima = [VIEW, replace(VIEW, mask="mask.png")], []
    evaluate(
        one(),
        views,
        Shots(shot, shot),
        [0, 1],
        background=white,
        transparent=lambda view: not view.mask,
        see=lambda view, drawn, truth: maxima.append(int(truth.max())),
    )
    assert maxima == [255, 0]


def test_lpips_where_package_and_weights_are_there(tmp_path, monkeypatch):
    def network(a, b):
        assert a.shape == (1, 3, 21, 33)
        assert -1 <= float(a.min()) <= float(b.max()) <= 1
        return (a - b).abs().mean()

    lpips = ModuleType("lpips")
    lpips.LPIPS = lambda net, verbose: network
    lpips.__spec__ = SimpleNamespace(name="lpips")
    monkeypatch.setitem(sys.modules, "lpips", lpips)
    vision = ModuleType("torchvision")
    vision.__spec__ = SimpleNamespace(name="torchvision")
    monkeypatch.setitem(sys.modules, "torchvision", vision)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert evaluate(one(), [VIEW], Shots(photograph(4)), [0])["lpips"] is None
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "vgg16-397923af.pth").touch()
    assert evaluate(one(), [VIEW], Shots(photograph(4)), [0])["lpips"] == pytest.approx(4 / 127.5, abs=1e-6)


@pytest.fixture
def run(tmp_path):
    """A run's folder and its scene: two photographs 4 values too bright, the second of them a test."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos" / "images").mkdir(parents=True)
    frames = []
    for name in ("a.png", "b.png"):
        image.fromarray(photograph(4).rgb).save(tmp_path / "photos" / "images" / name)
        frames.append({"file_path": f"images/{name}", "transform_matrix": np.diag([1.0, -1, -1, 1]).tolist()})
    transforms = {"fl_x": 30, "fl_y": 30, "cx": 16.5, "cy": 10.5, "w": 33, "h": 21, "frames": frames}
    (tmp_path / "photos" / "transforms.json").write_text(json.dumps(transforms))
    out = tmp_path / "out"
    out.mkdir()
    write(out / "splats.ply", one())
    views = [replace(VIEW, name="images/a.png", split="train"), replace(VIEW, name="images/b.png", split="test")]
    (out / "cameras.json").write_text(json.dumps([view.to_json() for view in views]))
    (out / "config.json").write_text(json.dumps({"settings": {"scene": str(tmp_path / "photos"), "images": None}}))
    return out


def test_a_run_is_measured_again_from_what_it_left(run, capsys):
    with pytest.raises(SystemExit):
        main(["splat", "eval", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)
    keys = "steps seconds splats sh_degree width height psnr ssim lpips images peak_memory_bytes ply plan report"
    assert set(found) == set(keys.split())
    assert [(image["name"], image["psnr"]) for image in found["images"]] == [("images/b.png", found["psnr"])]
    assert found["psnr"] == pytest.approx(20 * math.log10(255 / 4), abs=1e-6)
    assert (found["steps"], found["splats"], found["width"], found["height"]) == (None, 1, 33, 21)
    (run / "metrics.json").write_text(json.dumps({"steps": 7, "psnr": 1.0}))
    again = evaluate_run(trained(run))
    assert (again["steps"], again["psnr"]) == (7, found["psnr"])
    with pytest.raises(SystemExit):
        main(["splat", "eval", str(run)])
    assert "images/b.png  36.09 dB" in capsys.readouterr().out


def test_a_run_whose_photographs_are_others_now_is_refused(run):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (17, 11)).save(run.parent / "photos" / "images" / "b.png")
    with pytest.raises(BadFile, match="not as it was in training"):
        evaluate_run(trained(run))


def test_without_tests_there_is_nothing_to_measure(run):
    (run / "cameras.json").write_text("[]")
    with pytest.raises(UsageError, match="no test pictures"):
        evaluate_run(trained(run))
