"""Scenes put together, cut, thinned and moved, by the value of what is seen."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

from rung.models.card import View
from rung.splats import Cloud, read, write
from rung.splats.edit import Move, cropped, lowered, merged, moved, moved_view, pruned, turned_harmonics, weightiest

from .test_foreign import apart, source

SPLAT_TRANSFORM = shutil.which("splat-transform")
MOVE = Move((0.5, -2.0, 7.0), (20.0, -50.0, 130.0), 1.7)


def legendre(degree, order, x):
    """Associated Legendre polynomials by their recurrence, with Condon and Shortley's phase."""
    value = np.ones_like(x)
    for step in range(order):
        value = value * -(2 * step + 1) * np.sqrt(1 - x * x)
    before, step = np.zeros_like(x), order
    while step < degree:
        value, before = ((2 * step + 1) * x * value - (step + order) * before) / (step - order + 1), value
        step += 1
    return value


def basis(degree, directions):
    """Real harmonics from the definition, signs of 3D Gaussian Splatting: Condon and Shortley's phase stays in."""
    x, y, z = directions.T
    angle, columns = np.arctan2(y, x), []
    for band in range(degree + 1):
        for order in range(-band, band + 1):
            m = abs(order)
            ratio = np.prod([1.0 / k for k in range(band - m + 1, band + m + 1)])
            size = np.sqrt((2 * band + 1) / (4 * np.pi) * ratio) * (np.sqrt(2) if m else 1)
            wave = np.sin(m * angle) if order < 0 else np.cos(m * angle)
            columns.append(size * legendre(band, m, z) * wave)
    return np.stack(columns, axis=1)


def directions(number=200, seed=1):
    vectors = np.random.default_rng(seed).standard_normal((number, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_colors_turn_with_the_splats(degree):
    """In 200 directions, with a basis of our own in float64."""
    harmonics = source(6, (degree + 1) ** 2).harmonics
    rotation = MOVE.rotation
    assert np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-14)
    assert np.linalg.det(rotation) == pytest.approx(1)
    turned = turned_harmonics(harmonics, rotation)
    there = np.einsum("dt,ntc->ndc", basis(degree, directions()), harmonics)
    here = np.einsum("dt,ntc->ndc", basis(degree, directions() @ rotation.T), turned)
    assert np.abs(here - there).max() < 2e-6 * np.abs(harmonics).max() * (degree + 1) ** 2
    assert np.abs(turned - harmonics).max() > 0.05


def test_our_basis_is_that_of_gsplat():
    gsplat = pytest.importorskip("gsplat.cuda._torch_impl")
    vectors = torch.from_numpy(directions())
    found = gsplat._eval_sh_bases_fast(16, vectors).numpy()
    assert np.abs(found - basis(3, directions())).max() < 1e-12


def test_axes_that_turn_keep_the_signs_that_spz_has():
    """Half a turn about x, which takes right, down, forward to right, up, back."""
    harmonics = source(3, 16).harmonics
    turned = turned_harmonics(harmonics, Move(angles=(180, 0, 0)).rotation)
    spz = [1, -1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1]
    assert np.allclose(turned, harmonics * np.array(spz)[:, None], atol=1e-5)


def covariances(cloud):
    w, x, y, z = (cloud.quats.astype(np.float64) / np.linalg.norm(cloud.quats, axis=1, keepdims=True)).T
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z)]
    rows += [1 - 2 * (x * x + z * z), 2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x)]
    turn = np.stack([*rows, 1 - 2 * (x * x + y * y)], axis=1).reshape(-1, 3, 3)
    return np.einsum("nij,nj,nkj->nik", turn, np.exp(cloud.log_scales.astype(np.float64)) ** 2, turn)


def test_a_scene_that_is_moved():
    original, rotation = source(20, 4), MOVE.rotation
    result = moved(original, MOVE)
    assert np.allclose(result.means, original.means @ rotation.T * 1.7 + np.array(MOVE.shift), atol=1e-5)
    assert np.allclose(
        covariances(result), rotation @ covariances(original) @ rotation.T * 1.7**2, rtol=1e-4, atol=1e-8
    )
    assert np.array_equal(result.logits, original.logits)
    assert all(np.array_equal(a, b) for a, b in zip(moved(original, Move()), original, strict=True))
    quarter = moved(original, Move(angles=(0, 0, 90)))  # x becomes y
    assert np.allclose(quarter.means[:, 1], original.means[:, 0], atol=1e-6)
    assert np.allclose(Move(angles=(90, 90, 0)).rotation @ [0, 1, 0], [1, 0, 0])  # about x to z, then about y to x


def test_a_moved_scene_is_seen_as_before():
    view = View("a", "", 64, 48, 60.0, 60.0, 32.0, 24.0, (1.0, 0, 0, 0.2, 0, 0.6, -0.8, 0.5, 0, 0.8, 0.6, 9.0))
    there, original = moved_view(view, MOVE), source(30, 9)
    pose, turned = (np.array(each.pose).reshape(3, 4) for each in (view, there))
    result = moved(original, MOVE)
    before = original.means @ pose[:, :3].T + pose[:, 3]
    assert np.allclose(result.means @ turned[:, :3].T + turned[:, 3], 1.7 * before, atol=1e-4)
    colors = []
    for cloud, each in ((original, pose), (result, turned)):
        ways = cloud.means + each[:, :3].T @ each[:, 3]
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        colors.append(np.einsum("nt,ntc->nc", basis(2, ways.astype(np.float64)), cloud.harmonics))
    assert np.allclose(*colors, atol=1e-4)


@pytest.mark.skipif(SPLAT_TRANSFORM is None, reason="the npm package @playcanvas/splat-transform is not installed")
def test_another_program_moves_a_scene_as_we_do(tmp_path):
    write(tmp_path / "a.ply", source(50, 16))
    arguments = ["-s", "1.7", "-r", "20,-50,130", "-t", "0.5,-2,7"]
    subprocess.run([SPLAT_TRANSFORM, "-q", tmp_path / "a.ply", *arguments, tmp_path / "b.ply"], check=True, timeout=120)
    found = apart(moved(source(50, 16), MOVE), read(tmp_path / "b.ply"))
    assert {name: value for name, value in found.items() if value > 1e-5} == {}


def test_scenes_are_put_together_cut_and_thinned():
    plain, rich = lowered(source(5, 9), 0), source(4, 9)
    both = merged([plain, rich])
    assert both.harmonics.shape == (9, 9, 3)
    assert not both.harmonics[:5, 1:].any()
    assert np.array_equal(both.harmonics[5:], rich.harmonics)
    box = cropped(both, (-5, -5, -5), (5, 0, 2))
    inside = (both.means[:, 1] <= 0) & (both.means[:, 2] <= 2)
    assert 0 < inside.sum() < 9
    assert np.array_equal(box.means, both.means[inside])
    assert np.array_equal(pruned(both, 0.5).logits, both.logits[both.logits >= 0])


def test_the_splats_that_stay_have_the_most_opacity_and_size():
    zeros = np.zeros((4, 3), np.float32)
    scales = np.log(np.array([[1, 1, 1e-6], [2, 2, 1e-6], [1, 1, 1], [9, 0.1, 0.1]], np.float32))
    original = Cloud(zeros + np.arange(4)[:, None], np.ones((4, 4), np.float32), scales, zeros[:, 0], zeros[:, None])
    original.logits[:] = (3, -1, -3, 3)
    assert weightiest(original, 2).means[:, 0].tolist() == [0, 3]  # 0.95 x 1, 0.95 x 0.95; then 0.27 x 2
    assert weightiest(original, 4) is original
    assert len(weightiest(original, 0).means) == 0
