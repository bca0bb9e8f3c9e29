"""Splats through WebGPU on a software adapter, against ``ref`` in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rung.core.errors import OutOfMemory
from rung.core.types import Case
from rung.core.value import FrozenDict
from rung.kernels.webgpu.splat import WORKGROUP_BYTES
from rung.ops.rasterize import LADDER, Camera, Splats
from rung.ops.rasterize.self_check import gradients, splats
from rung.splats import rasterization
from tests.ops.test_rasterize import CAMERA, REF, doubles, same, wild
from tests.support.devices import software_adapter

adapter = software_adapter()
RUNG = LADDER.rung("webgpu.tile")


class Bound:
    """The rung on a device, as tests of the others take it."""

    name = RUNG.name

    def __init__(self, device):
        self.device = device

    def load(self):
        return self

    def apply(self, *arguments):
        return RUNG.load().apply(*arguments, device=self.device.id)


@pytest.fixture
def rung(adapter):
    return Bound(adapter)


@pytest.mark.parametrize(("degree", "antialiased"), [(3, False), (2, False), (1, True), (0, False), (None, False)])
def test_values_and_gradients_are_those_of_ref(rung, degree, antialiased):
    same(rung, wild(11, 120, degree), CAMERA._replace(degree=degree, antialiased=antialiased), 1e-5, 1e-4)


@pytest.mark.parametrize(
    ("width", "height", "count"), [(1, 1, 20), (16, 16, 40), (17, 33, 40), (40, 3, 1), (20, 20, 0)]
)
def test_pictures_of_any_size(rung, width, height, count):
    camera = Camera(width, height, 30.0, 30.0, width / 2, height / 2, 0)
    (got, slopes), (want, right) = (
        gradients(impl, x, camera) for impl, x in ((rung, splats(count, 0)), (REF, doubles(splats(count, 0))))
    )
    assert got.color.shape == (height, width, 3)
    for name in ("color", "alpha", "depth"):
        assert float((getattr(got, name) - getattr(want, name)).detach().abs().max()) < 1e-4
    assert torch.equal(got.radii, want.radii)
    for here, there in zip(slopes, right, strict=True):
        assert here.shape == there.shape
        assert not there.numel() or float((here - there).abs().max()) <= 1e-4 * float(there.abs().max())


def test_long_lists_end_where_a_pixel_takes_no_more(rung):
    """700 splats on each tile, more than are read at once; the wide ones halve what is behind them."""
    scene = splats(1400, None)
    means = scene.means * torch.tensor([0.05, 0.05, 1.0])
    opacities = torch.full((1400,), 0.02)
    opacities[700:] = 0.5
    flat = Splats(means, scene.quats, 100 * scene.scales, opacities, scene.colors[:, 0])
    camera = Camera(20, 20, 30.0, 30.0, 10.0, 10.0)
    got, slopes = gradients(rung, flat, camera)
    want, right = gradients(REF, doubles(flat), camera)
    assert float((got.color - want.color).detach().abs().max()) < 1e-3
    assert float(got.alpha.detach().min()) > 0.999
    for here, there in zip(slopes, right, strict=True):
        assert float((here - there).norm() / there.norm()) < 1e-2


def test_gradients_of_a_camera_that_is_turned_and_moved(rung):
    pose = torch.tensor([[0.96, 0.0, 0.28, -0.9], [0.0, 1.0, 0.0, 0.2], [-0.28, 0.0, 0.96, 0.3], [0.0, 0.0, 0.0, 1.0]])
    found = []
    for implementation, kind in ((rung, torch.float32), (REF, torch.float64)):
        taken = [tensor.detach().to(kind).requires_grad_() for tensor in (*splats(80, 2), pose)]
        drawn = implementation.apply(Splats(*taken[:5]), taken[5], CAMERA._replace(degree=2))
        (drawn.color.square().sum() + drawn.depth.sum()).backward()
        found.append([tensor.grad for tensor in taken])
    for here, there in zip(*found, strict=True):
        assert float((here - there).abs().max() / there.abs().max()) < 1e-4


def test_gradients_on_the_screen_and_their_absolute_sums(rung):
    scene, camera = wild(5, 60, None), Camera(19, 3, 20.0, 20.0, 9.3, 1.6)
    found = []
    for implementation, kind in ((rung, torch.float32), (REF, torch.float64)):
        screen = torch.zeros(60, 4, dtype=kind, requires_grad=True)
        drawn = implementation.apply(Splats(*(x.to(kind) for x in scene)), torch.eye(4, dtype=kind), camera, screen)
        drawn.color.square().sum().backward()
        found.append(screen.grad)
    assert float((found[0] - found[1]).abs().max() / found[1].abs().max()) < 1e-4
    assert float((found[1][:, :2].abs() < 0.5 * found[1][:, 2:]).double().mean()) > 0.1  # signs do matter


def test_the_same_bits_twice(rung):
    scene, camera = splats(2000, 1), Camera(112, 96, 100.0, 101.0, 55.5, 48.5, 1)
    (one, slopes), (two, again) = (gradients(rung, scene, camera) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip((one.color, *slopes), (two.color, *again), strict=True))


def test_nothing_in_the_picture(rung):
    scene = splats(9, 0)
    scene = scene._replace(means=scene.means - torch.tensor([0.0, 0.0, 10.0]))
    drawn, slopes = gradients(rung, scene, CAMERA._replace(degree=0))
    assert not drawn.color.any()
    assert not drawn.alpha.any()
    assert not drawn.radii.any()
    assert not any(slope.any() for slope in slopes)


def test_values_that_are_no_numbers_draw_nothing(rung):
    scene = splats(40, 0)
    broken = Splats(*(tensor.clone() for tensor in scene))
    broken.means[3, 0], broken.scales[4, 1], broken.opacities[5], broken.means[6, 2] = [math.nan] * 4
    broken.scales[7, 0], broken.quats[8, 2] = math.inf, math.nan
    kept = [index for index in range(40) if not 3 <= index <= 8]
    camera = CAMERA._replace(degree=0)
    got = rung.apply(broken, torch.eye(4), camera)
    want = rung.apply(Splats(*(tensor[kept] for tensor in scene)), torch.eye(4), camera)
    assert torch.equal(got.color, want.color)


def test_what_a_driver_does_not_bind_is_refused(adapter, rung, monkeypatch):
    from rung.kernels.webgpu.gpu import gpu

    device = gpu(adapter.id)
    drawn = rung.apply(Splats(*(x.requires_grad_() for x in splats(300, 3))), torch.eye(4), CAMERA)
    for most in (300 * 16 * 12 - 1, 6 * 4 * CAMERA.width * CAMERA.height - 1):
        monkeypatch.setattr(device, "limits", replace(device.limits, binding=most))
        with pytest.raises(OutOfMemory, match="one buffer"):
            rung.apply(splats(300 if most < 60_000 else 3000, 3), torch.eye(4), CAMERA)
    monkeypatch.setattr(device, "limits", replace(device.limits, binding=4096))
    with pytest.raises(OutOfMemory, match="one buffer"):
        drawn.color.sum().backward()


def test_an_adapter_whose_workgroups_have_too_little_memory_is_left(adapter):
    case = Case("rasterize", "f32", "f32", (1000, 64, 64))
    assert RUNG.verdict(case, adapter)
    limits = FrozenDict({"max-compute-workgroup-storage-size": WORKGROUP_BYTES - 1})
    small = replace(adapter, details=FrozenDict({"adapter": FrozenDict({"limits": limits})}))
    assert "of a workgroup" in RUNG.verdict(case, small).reason
    assert LADDER.climb(small, case).rung.name == "numba.tile"


@pytest.mark.parametrize(("count", "bits"), [(1, 8), (2047, 16), (2049, 9), (70_001, 32)])
def test_keys_are_sorted_and_equal_ones_keep_their_order(adapter, count, bits):
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.splat import sorting

    device, generator = gpu(adapter.id), np.random.default_rng(count)
    keys = generator.integers(0, 1 << bits, count, np.uint64).astype(np.uint32)
    keys[count // 2 :] = keys[: count - count // 2]
    inputs = device.upload([keys]), device.upload([np.arange(count, dtype=np.uint32)])
    kernels, *results = sorting.sort(device, count, *inputs, bits, sorting.Scratch.of(device, count))
    device.run(kernels)
    order = np.argsort(keys, kind="stable")
    for buffer, right in zip(results, (keys[order], order), strict=True):
        np.testing.assert_array_equal(device.read(buffer, 0, 4 * count).view(np.uint32), right)


@pytest.mark.parametrize("count", [1, 1024, 300_000])
def test_prefix_sums(adapter, count):
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.splat import sorting

    device = gpu(adapter.id)
    values = np.random.default_rng(count).integers(0, 1000, count, np.uint32)
    sums, result = sorting.sums_of(device, count), device.buffer(4 * count + 4)
    device.run([*sorting.prefix_sums(device, count, device.upload([values]), sums, result)])
    right = np.concatenate([[0], np.cumsum(values, dtype=np.uint64)])
    np.testing.assert_array_equal(device.read(result, 0, 4 * count + 4).view(np.uint32), right)


@pytest.mark.slow
def test_it_trains_as_the_processor_does(adapter):
    """Adam on a picture: the losses of some steps are those of the compiled tiles."""
    losses = []
    for device in (None, adapter.id):
        parameters = [x.clone().requires_grad_() for x in splats(300, None)]
        parameters[4] = splats(300, None).colors[:, 0].clone().requires_grad_()
        goal = torch.linspace(0, 1, 48)[None, :, None].expand(48, 48, 3)
        intrinsics = torch.tensor([[[50.0, 0, 24], [0, 50, 24], [0, 0, 1]]])
        optimizer, found = torch.optim.Adam(parameters, lr=1e-2), []
        for _ in range(15):
            picture, _, meta = rasterization(*parameters, torch.eye(4)[None], intrinsics, 48, 48, device=device)
            loss = (picture[0] - goal).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
        losses.append(found)
        assert meta["means2d"].shape == (1, 300, 2)
    assert losses[0][-1] < 0.8 * losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_no_more_crosses_the_bus_than_is_planned(adapter, rung):
    from rung.kernels.webgpu.gpu import gpu
    from rung.splats.planning.costs import Load, crossing_bytes

    device = gpu(adapter.id)
    for degree in (1, 3):
        scene = Splats(*(x.requires_grad_() for x in splats(3000, degree)))
        before, camera = device.crossed, Camera(112, 96, 100.0, 101.0, 55.5, 48.5, degree)
        rung.apply(scene, torch.eye(4), camera, torch.zeros(3000, 2)).color.sum().backward()
        planned = crossing_bytes(Load(3000, 112 * 96, degree))
        assert planned * 0.99 < device.crossed - before < planned + 4096
        assert scene.colors.grad.shape == scene.colors.shape
