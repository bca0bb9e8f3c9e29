"""A real view finds what a small self-check does not: rungs that are wrong only with many splats or large pictures."""

from __future__ import annotations

import math

import pytest
import torch

from rung.ops.rasterize import LADDER, Camera, Splats
from rung.ops.rasterize.self_check import splats
from rung.splats.training import view_check
from rung.splats.training.view_check import differs
from tests.run import bad_rungs

CAMERA = Camera(200, 150, 180.0, 182.0, 99.0, 76.0, 1)
POSE = torch.eye(4)
GOOD = LADDER.rung("numba.tile").load()
REF = LADDER.rung("ref").load()


class Edge:
    """Splats beyond the first 2,000 vanish, as where a counter is too narrow."""

    def apply(self, scene, pose, camera, screen=None):
        kept = (torch.arange(len(scene.means)) < 2000).float()
        return GOOD.apply(scene._replace(opacities=scene.opacities * kept), pose, camera, screen)


class Deaf:
    """The picture is right and splats on its right side do not learn."""

    def apply(self, scene, pose, camera, screen=None):
        right = (scene.means[:, 0] > 0.3)[:, None]
        return GOOD.apply(
            scene._replace(scales=torch.where(right, scene.scales.detach(), scene.scales)), pose, camera, screen
        )


class Blind:
    """A pixel of the picture is no number."""

    def apply(self, scene, pose, camera, screen=None):
        drawn = GOOD.apply(scene, pose, camera, screen)
        color = drawn.color.clone()
        color.data[:, 100] = math.nan
        return drawn._replace(color=color)


class Poisoned:
    """The picture is right and gradients of its centers are no numbers."""

    def apply(self, scene, pose, camera, screen=None):
        means = scene.means.clone()
        means.register_hook(lambda slope: slope * math.nan)
        return GOOD.apply(scene._replace(means=means), pose, camera, screen)


class Loud:
    """Splats behind the camera have gradients too."""

    def apply(self, scene, pose, camera, screen=None):
        drawn = GOOD.apply(scene, pose, camera, screen)
        behind = scene.opacities[scene.means[:, 2] < 0].sum()
        return drawn._replace(color=drawn.color + behind - behind.detach())


def test_scene():
    return splats(3000, 1)


def test_round_splats_have_no_gradient_by_rotation_and_are_no_reason_to_refuse():
    taken = test_scene()
    taken.scales[:] = taken.scales[:, :1]
    assert differs(LADDER.rung("torch.tile").load().apply, taken, POSE, CAMERA) == ""


@pytest.mark.parametrize("rung", [GOOD, LADDER.rung("torch.tile").load()], ids=["numba", "torch"])
def test_a_good_rung_is_found_good(rung):
    before = test_scene()
    taken = test_scene()
    assert differs(rung.apply, taken, POSE, CAMERA) == ""
    assert all(torch.equal(a, b) for a, b in zip(before, taken, strict=True))
    assert all(tensor.grad is None for tensor in taken)


@pytest.mark.parametrize(
    ("bad", "words"),
    [(Edge(), "pixels of a view"), (Deaf(), "gradients of scales"), (bad_rungs.VANISHED, "pixels of a view")],
)
def test_what_is_wrong_only_at_size_is_said(bad, words):
    assert words in differs(bad.apply, test_scene(), POSE, CAMERA)


@pytest.mark.parametrize(
    ("bad", "words"),
    [(Blind(), "no numbers"), (Poisoned(), "gradients of means"), (Loud(), "gradients of opacities")],
)
def test_what_is_no_number_and_who_is_not_seen_count_too(bad, words):
    taken = test_scene()
    taken.means[::10, 2] *= -1
    assert words in differs(bad.apply, taken, POSE, CAMERA)


def test_fewer_pixels_than_64_tiles_and_nothing_to_see():
    small = Camera(17, 9, 20.0, 20.0, 8.0, 4.0, 1)
    assert differs(GOOD.apply, test_scene(), POSE, small) == ""
    behind = test_scene()
    behind.means[:, 2] = -1
    assert differs(GOOD.apply, behind, POSE, CAMERA) == ""


@pytest.mark.parametrize(("piece", "pairs"), [pytest.param(700, 4000, marks=pytest.mark.slow), (1, 1 << 15)])
def test_pieces_of_any_size_say_the_same(monkeypatch, piece, pairs):
    scene = splats(3000 if piece > 1 else 40, 1)
    whole = slopes_of(scene)
    monkeypatch.setattr(view_check, "_PIECE", piece)
    monkeypatch.setattr(view_check, "_PAIRS", pairs)
    for one, other in zip(whole, slopes_of(scene), strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def slopes_of(scene):
    """Pixels, and gradients of the splats that are seen, as the reference has them."""
    places = view_check.random_tiles(CAMERA)
    left, top = (torch.tensor(places) * 16).T
    sizes = zip((150 - top).clamp_max(16).tolist(), (200 - left).clamp_max(16).tolist(), strict=True)
    weights = [torch.full((high, wide, 5), 0.7) for high, wide in sizes]
    chosen = view_check.splats_near(scene, POSE, CAMERA, places)
    own = Splats(*(tensor[chosen] for tensor in scene))
    pixels, gradients = view_check.reference(own, POSE, CAMERA, places, weights)
    slopes = view_check.gradients_of_splats(own, POSE, CAMERA, gradients)
    return [pixels, *(torch.cat(parts) for parts in zip(*slopes, strict=True))]
