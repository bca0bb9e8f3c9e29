"""The rung of gsplat's kernels, with kernels of torch in their place: what it hands them, and what it makes of it."""

from __future__ import annotations

import pytest
import torch

from rung.ops.rasterize import LADDER, TILE, Camera, Splats
from rung.ops.rasterize.projecting import Flat, composite
from rung.ops.rasterize.self_check import gradients, splats

torch_kernels = pytest.importorskip("gsplat.cuda._torch_impl")


class Kernels:
    """gsplat's signatures."""

    @staticmethod
    def isect_tiles(means2d, radii, depths, tile_size, tile_width, tile_height, *, n_images):
        assert n_images == 1
        return torch_kernels._isect_tiles(means2d, radii, depths, tile_size, tile_width, tile_height)

    @staticmethod
    def isect_offset_encode(isect_ids, n_images, tile_width, tile_height):
        return torch_kernels._isect_offset_encode(isect_ids, n_images, tile_width, tile_height)

    @staticmethod
    def rasterize_to_pixels(
        means2d, conics, colors, opacities, width, height, tile_size, isect_offsets, flatten_ids, absgrad=False
    ):
        assert tile_size == TILE
        absolute = torch.zeros(len(conics[0]), 2, requires_grad=True) if absgrad else None
        if absolute is not None:  # as gsplat does it: on the way back the centers get an attribute
            absolute.register_post_accumulate_grad_hook(lambda tensor: setattr(means2d, "absgrad", tensor.grad[None]))
        flat = Flat(means2d[0], conics[0], opacities[0], colors[0, :, :3], colors[0, :, 3], torch.zeros(0))
        starts = [*isect_offsets.reshape(-1).tolist(), len(flatten_ids)]
        rows = []
        for row in range(isect_offsets.shape[1]):
            boxes = []
            for column in range(isect_offsets.shape[2]):
                tile = row * isect_offsets.shape[2] + column
                down, across = torch.arange(TILE) + 0.5 + TILE * row, torch.arange(TILE) + 0.5 + TILE * column
                pixels = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1).reshape(-1, 2)
                chosen = flatten_ids[starts[tile] : starts[tile + 1]].long()
                boxes.append(composite(flat, chosen, pixels, absolute).reshape(TILE, TILE, 5))
            rows.append(torch.cat(boxes, dim=1))
        image = torch.cat(rows)[:height, :width]
        return image[None, ..., :4], image[None, ..., 4:]


def test_it_gives_what_ref_gives(monkeypatch):
    rung = LADDER.rung("gsplat.cuda").load()
    monkeypatch.setattr("rung.ops.rasterize.gsplat_cuda.kernels", Kernels)
    camera, scene = Camera(37, 21, 30.0, 31.0, 18.2, 10.1, 2, True), splats(50, 2)
    got, slopes = gradients(rung, scene, camera)
    want, right = gradients(LADDER.rung("ref").load(), Splats(*(tensor.double() for tensor in scene)), camera)
    for name in ("color", "alpha", "depth"):
        assert float((getattr(got, name) - getattr(want, name)).abs().max()) < 1e-5
    assert torch.equal(got.radii, want.radii)
    for here, there in zip(slopes, right, strict=True):
        assert float((here - there).abs().max() / there.abs().max()) < 1e-3


def test_absolute_gradients_are_those_that_gsplat_leaves_on_the_centers(monkeypatch):
    rung = LADDER.rung("gsplat.cuda").load()
    monkeypatch.setattr("rung.ops.rasterize.gsplat_cuda.kernels", Kernels)
    camera, scene, found = Camera(37, 21, 30.0, 31.0, 18.2, 10.1, 2), splats(50, 2), []
    for implementation, kind in ((rung, torch.float32), (LADDER.rung("ref").load(), torch.double)):
        screen = torch.zeros(50, 4, dtype=kind, requires_grad=True)
        taken = Splats(*(tensor.to(kind) for tensor in scene))
        implementation.apply(taken, torch.eye(4, dtype=kind), camera, screen).color.square().sum().backward()
        found.append(screen.grad)
    assert float((found[0] - found[1]).abs().max() / found[1].abs().max()) < 1e-3
