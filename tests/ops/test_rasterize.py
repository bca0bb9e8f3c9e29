"""The rungs of rasterize: ``ref`` against sums by hand and against gsplat's functions, the others against ``ref``."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.ops.rasterize import LADDER, LEAST_ALPHA, LEAST_LEFT, MOST_ALPHA, Camera, Splats
from rung.ops.rasterize.projecting import basis, project
from rung.ops.rasterize.self_check import gradients, splats

REF = LADDER.rung("ref").load()
CAMERA = Camera(61, 45, 55.0, 57.0, 29.3, 23.1, 3)
RUNGS = [rung for rung in LADDER.rungs[:-1] if set(rung.needs) <= {"package.numba", "package.torch"}]


def wild(seed, count=120, degree=3):
    """Splats of every kind: behind the camera, on borders of tiles, opaque, tiny, huge, flat as a disc."""
    generator = torch.Generator().manual_seed(seed)
    base = splats(count, degree, seed)
    means, scales, opacities = base.means.clone(), base.scales * 3, base.opacities.clone()
    means[:5, 2] *= -1
    means[5:10, 2] = torch.rand(5, generator=generator) * 0.1
    means[10:14] = torch.tensor([[0.0, 0.0, 1.0]]) * (2 + torch.rand(4, 1, generator=generator))
    means[14, :2] = (16.0 - torch.tensor([CAMERA.cx, CAMERA.cy])) / torch.tensor([CAMERA.fx, CAMERA.fy]) * means[14, 2]
    opacities[15:30] = 0.98 + 0.02 * torch.rand(15, generator=generator)
    scales[30:35] *= 1e-3
    scales[35:38] *= 40
    scales[38:44, 1:] *= 1e-2
    opacities[44:48] = 0.003
    colors = base.colors if degree is not None else base.colors[:, 0]
    return Splats(means, base.quats, scales, opacities, colors)


def doubles(scene):
    return Splats(*(tensor.double() for tensor in scene))


def decisions(scene, camera, pose=None):
    """Pixels [H, W] where a skip, a stop or an order lies within 1e-5 of its threshold, and the splats seen there."""
    flat = project(doubles(scene), torch.eye(4, dtype=torch.double) if pose is None else pose.double(), camera)
    order = torch.argsort(flat.depths, stable=True)
    order = order[flat.radii[order, 0] > 0]
    across, down = torch.meshgrid(torch.arange(camera.width), torch.arange(camera.height), indexing="xy")
    pixels = torch.stack([across, down], -1).reshape(-1, 2) + 0.5
    dx, dy = (pixels[:, None, :] - flat.means[order]).unbind(-1)
    xx, xy, yy = flat.conics[order].unbind(-1)
    raw = flat.opacities[order] * torch.exp(-0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy)
    alpha = torch.where(raw >= LEAST_ALPHA, raw.clamp_max(MOST_ALPHA), 0)
    left = torch.cumprod(1 - alpha, 1)
    visible = raw >= 0.5 * LEAST_ALPHA
    near = (raw / LEAST_ALPHA - 1).abs() < 1e-5
    near |= (left / LEAST_LEFT - 1).abs() < 1e-3  # a product of hundreds of roundings
    near |= (raw / MOST_ALPHA - 1).abs() < 1e-5
    close = flat.depths[order].diff().abs() < 1e-5
    near[:, 1:] |= close & visible[:, 1:] & visible[:, :-1]
    unsure = near.any(1)
    touched = torch.zeros(len(scene.means), dtype=torch.bool)
    touched[order[visible[unsure].any(0)]] = True
    return unsure.reshape(camera.height, camera.width), touched


def by_hand(scene, camera):
    """The picture of plain colors, pixel by pixel and splat by splat, without a matrix library."""
    out = torch.zeros(camera.height, camera.width, 5, dtype=torch.double)
    flat = []
    for mean, quat, scale, opacity, color in zip(*(tensor.double().tolist() for tensor in scene), strict=True):
        x, y, z = mean
        if not camera.near < z < camera.far:
            continue
        length = math.sqrt(sum(q * q for q in quat))
        w, i, j, k = (q / length for q in quat)
        turn = [
            [1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j)],
            [2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i)],
            [2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)],
        ]
        sigma = [[sum(turn[a][c] * scale[c] ** 2 * turn[b][c] for c in range(3)) for b in range(3)] for a in range(3)]
        slope = [[camera.fx / z, 0, -camera.fx * x / z / z], [0, camera.fy / z, -camera.fy * y / z / z]]
        flat_sigma = [
            [sum(slope[a][m] * sigma[m][n] * slope[b][n] for m in range(3) for n in range(3)) for b in range(2)]
            for a in range(2)
        ]
        xx, xy, yy = flat_sigma[0][0] + 0.3, flat_sigma[0][1], flat_sigma[1][1] + 0.3
        center = camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy
        flat.append((z, center, (xx, xy, yy, xx * yy - xy * xy), opacity, [*color, z, 1.0]))
    flat.sort(key=lambda each: each[0])
    for row in range(camera.height):
        for column in range(camera.width):
            left = 1.0
            for _, (cx, cy), (xx, xy, yy, area), opacity, channels in flat:
                dx, dy = column + 0.5 - cx, row + 0.5 - cy
                alpha = min(0.999, opacity * math.exp(-0.5 * (yy * dx * dx - 2 * xy * dx * dy + xx * dy * dy) / area))
                if alpha < 1 / 255:
                    continue
                if left * (1 - alpha) <= 1e-4:
                    break
                out[row, column] += alpha * left * torch.tensor(channels, dtype=torch.double)
                left *= 1 - alpha
    return out


def test_ref_is_the_sum_by_hand():
    camera = Camera(21, 18, 40.0, 43.0, 9.7, 9.1)
    scene = wild(3, 60, None)
    scene = scene._replace(means=scene.means * torch.tensor([0.3, 0.3, 1.0]), opacities=scene.opacities * 0.6 + 0.4)
    # the hand holds no slope at the picture's edge: splats far outside may differ
    inside = (scene.means[:, :2].abs() < 0.35 * scene.means[:, 2:]).all(1) | (scene.means[:, 2] < 0.01)
    assert inside.float().mean() > 0.8
    kept = Splats(*(tensor[inside] for tensor in scene))
    found, want = REF.apply(doubles(kept), torch.eye(4, dtype=torch.double), camera), by_hand(kept, camera)
    assert float((found.color - want[..., :3]).abs().max()) < 1e-12
    assert float((found.depth - want[..., 3]).abs().max()) < 1e-11
    assert float((found.alpha - want[..., 4]).abs().max()) < 1e-12
    assert float(found.alpha.max()) > 0.999


def test_the_gradients_of_ref_are_slopes():
    camera = Camera(7, 6, 10.0, 11.0, 3.2, 3.3, 2, antialiased=True)
    scene = doubles(splats(4, 2))
    pose = torch.eye(4, dtype=torch.double)
    pose[:3, 3] = torch.tensor([0.1, -0.05, 0.2])

    def picture(*tensors):
        drawn = REF.apply(Splats(*tensors[:5]), tensors[5], camera)
        return drawn.color, drawn.alpha, drawn.depth

    torch.autograd.gradcheck(
        picture, [tensor.requires_grad_() for tensor in (*scene, pose)], eps=1e-7, atol=1e-4, fast_mode=True
    )


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_harmonics_are_gsplats(degree):
    theirs = pytest.importorskip("gsplat.cuda._torch_impl")
    generator = torch.Generator().manual_seed(degree)
    directions = torch.nn.functional.normalize(torch.randn(200, 3, generator=generator, dtype=torch.double), dim=-1)
    terms = (degree + 1) ** 2
    coefficients = torch.randn(200, terms, 3, generator=generator, dtype=torch.double)
    want = theirs._spherical_harmonics(degree, directions, coefficients)
    got = (basis(degree, directions)[:, :, None] * coefficients).sum(1)
    assert float((got - want).abs().max() / want.abs().max()) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_projection_is_gsplats(seed):
    theirs = pytest.importorskip("gsplat.cuda._torch_impl")
    scene = doubles(wild(seed, 400))
    pose = torch.eye(4, dtype=torch.double)
    pose[:3, :3] = torch.linalg.qr(torch.eye(3, dtype=torch.double) + 0.1 * torch.randn(3, 3).double())[0]
    pose[:3, :3] *= torch.sign(torch.diagonal(pose[:3, :3]))
    size = torch.tensor([[CAMERA.fx, 0, CAMERA.cx], [0, CAMERA.fy, CAMERA.cy], [0, 0, 1]], dtype=torch.double)
    covariances, _ = theirs._quat_scale_to_covar_preci(scene.quats, scene.scales, compute_preci=False, triu=False)
    radii, means, depths, conics, shares = theirs._fully_fused_projection(
        scene.means, covariances, pose[None], size[None], CAMERA.width, CAMERA.height, calc_compensations=True
    )
    flat = project(scene, pose, CAMERA)
    blurred = project(scene, pose, CAMERA._replace(antialiased=True))
    visible = flat.radii[:, 0] > 0
    assert torch.equal(flat.radii, radii[0])
    assert 0.5 < float(visible.double().mean()) < 0.99
    for got, want in ((flat.means, means[0]), (flat.depths, depths[0]), (flat.conics, conics[0])):
        assert float(((got - want)[visible].abs() / want[visible].abs().clamp_min(1e-3)).max()) < 1e-5
    assert float((blurred.opacities - scene.opacities * shares[0])[visible].abs().max()) < 1e-6


def same(rung, scene, camera, most, worst):
    """A rung in float32 gives what ``ref`` gives in float64, but where a decision is on its threshold."""
    got, slopes = gradients(rung.load(), scene, camera)
    want, right = gradients(REF, doubles(scene), camera)
    unsure, touched = decisions(scene, camera)
    assert float(unsure.double().mean()) <= 0.001
    for name, scale in (("color", 1), ("alpha", 1), ("depth", 5)):
        error = (getattr(got, name) - getattr(want, name)).abs().detach() / scale
        error = error.amax(-1) if error.dim() == 3 else error
        assert float(error[~unsure].max()) < most, name
        assert float(error.max()) <= 1 / 255, name
    assert torch.equal(got.radii, want.radii)
    for name, here, there in zip(Splats._fields, slopes, right, strict=False):
        error = (here - there)[~touched].abs().max() / there.abs().max()
        assert float(error) < worst, name
    if not bool(unsure.any()):
        assert float((slopes[5] - right[5]).abs().max() / right[5].abs().max()) < worst


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
@pytest.mark.parametrize(("degree", "antialiased"), [(3, False), (1, True), (None, False)])
def test_every_rung_gives_what_ref_gives(rung, degree, antialiased):
    camera = CAMERA._replace(degree=degree, antialiased=antialiased)
    exact = rung.name == "numba.tile"  # its projection is float64
    same(rung, wild(11, 120, degree), camera, 1e-5 if exact else 5e-3, 1e-4 if exact else 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_compiled_tiles_on_many_scenes(seed):
    same(LADDER.rung("numba.tile"), wild(100 + seed, 150), CAMERA._replace(antialiased=seed % 2 == 1), 1e-5, 1e-4)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
@pytest.mark.parametrize(
    ("width", "height", "count"), [(1, 1, 20), (16, 16, 40), (17, 33, 40), (40, 3, 1), (20, 20, 0)]
)
def test_pictures_of_any_size(rung, width, height, count):
    camera = Camera(width, height, 30.0, 30.0, width / 2, height / 2, 0)
    scene = splats(count, 0)
    got, want = (
        impl.apply(x, torch.eye(4, dtype=x.means.dtype), camera)
        for impl, x in ((rung.load(), scene), (REF, doubles(scene)))
    )
    assert got.color.shape == (height, width, 3)
    assert float((got.color - want.color).abs().max()) < 1e-4
    assert float((got.alpha - want.alpha).abs().max()) < 1e-4


@pytest.mark.parametrize("rung", [*RUNGS, LADDER.rung("ref")], ids=lambda rung: rung.name)
def test_a_pixel_takes_nothing_more_where_a_ten_thousandth_would_be_left(rung):
    """Wide splats that halve what is behind them: 13 of 40 are taken, 0.5^14 is below 1e-4."""
    scene = splats(40, None)
    means = torch.zeros(40, 3)
    means[:, 2] = 2 + 0.05 * torch.arange(40)
    flat = Splats(means, scene.quats, torch.full((40, 3), 9.0), torch.full((40,), 0.5), torch.ones(40, 3))
    left = 1 - rung.load().apply(flat, torch.eye(4), Camera(20, 20, 30.0, 30.0, 10.0, 10.0)).alpha
    assert float(left.min()) > 1e-4
    assert float(left.max()) < 2e-4


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_gradients_of_a_camera_that_is_turned_and_moved(rung):
    pose = torch.tensor([[0.96, 0.0, 0.28, -0.9], [0.0, 1.0, 0.0, 0.2], [-0.28, 0.0, 0.96, 0.3], [0.0, 0.0, 0.0, 1.0]])
    found = []
    for implementation, kind in ((rung.load(), torch.float32), (REF, torch.float64)):
        taken = [tensor.detach().to(kind).requires_grad_() for tensor in (*splats(80, 2), pose)]
        drawn = implementation.apply(Splats(*taken[:5]), taken[5], CAMERA._replace(degree=2))
        (drawn.color.square().sum() + drawn.depth.sum()).backward()
        found.append([tensor.grad for tensor in taken])
    for here, there in zip(*found, strict=True):
        assert float((here - there).abs().max() / there.abs().max()) < 1e-3


@given(
    st.lists(st.floats(width=32, allow_nan=False), max_size=60).map(lambda few: few + few[:7]),
)
def test_numbers_are_ordered_by_size_and_equal_ones_by_place(values):
    by_size = pytest.importorskip("rung.ops.rasterize.compiled_picture").by_size
    keys = np.array(values, np.float32) + np.float32(0)  # -0 is 0
    np.testing.assert_array_equal(by_size(keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_nothing_in_the_picture(rung):
    scene = splats(9, 0)
    scene = scene._replace(means=scene.means - torch.tensor([0.0, 0.0, 10.0]))
    drawn, slopes = gradients(rung.load(), scene, CAMERA._replace(degree=0))
    assert not drawn.color.any()
    assert not drawn.radii.any()
    assert not any(slope.any() for slope in slopes)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_the_gradient_on_the_screen_is_that_of_the_centers(rung):
    scene, camera = splats(60, 0), CAMERA._replace(degree=0)
    found = []
    for implementation, kind in ((rung.load(), torch.float32), (REF, torch.float64)):
        screen = torch.zeros(60, 2, dtype=kind, requires_grad=True)
        drawn = implementation.apply(Splats(*(x.to(kind) for x in scene)), torch.eye(4, dtype=kind), camera, screen)
        drawn.color.square().sum().backward()
        found.append(screen.grad)
    assert float((found[0] - found[1]).abs().max() / found[1].abs().max()) < 1e-3


@pytest.mark.parametrize("rung", [*RUNGS, LADDER.rung("ref")], ids=lambda rung: rung.name)
def test_absolute_gradients_on_the_screen_are_sums_over_pixels(rung):
    scene, camera = wild(5, 60, None), Camera(19, 3, 20.0, 20.0, 9.3, 1.6)
    weights = torch.randn(3, 19, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    screen = torch.zeros(60, 2, dtype=torch.double, requires_grad=True)
    drawn = REF.apply(doubles(scene), torch.eye(4, dtype=torch.double), camera, screen)
    pixels = (drawn.color * weights).sum(-1).reshape(-1)
    each = torch.stack([torch.autograd.grad(pixel, screen, retain_graph=True)[0] for pixel in pixels])
    want = torch.cat([each.sum(0), each.abs().sum(0)], dim=1)
    assert float((want[:, :2].abs() < 0.5 * want[:, 2:]).double().mean()) > 0.1  # signs do matter
    kind = torch.double if rung.name == "ref" else torch.float32
    absolute = torch.zeros(60, 4, dtype=kind, requires_grad=True)
    got = rung.load().apply(Splats(*(tensor.to(kind) for tensor in scene)), torch.eye(4, dtype=kind), camera, absolute)
    (got.color * weights.to(kind)).sum().backward()
    assert float((absolute.grad - want).abs().max() / want.abs().max()) < (1e-12 if rung.name == "ref" else 5e-3)


def test_the_same_bits_on_any_number_of_threads():
    rung, scene, before = LADDER.rung("numba.tile").load(), splats(3000, 3), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            drawn, slopes = gradients(rung, scene, CAMERA)
            found.append([drawn.color.detach(), *slopes])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_values_that_are_no_numbers_draw_nothing(rung):
    scene = splats(40, 0)
    broken = Splats(*(tensor.clone() for tensor in scene))
    broken.means[3, 0], broken.scales[4, 1], broken.opacities[5], broken.means[6, 2] = [math.nan] * 4
    broken.scales[7, 0] = math.inf
    kept = [index for index in range(40) if index not in (3, 4, 5, 6, 7)]
    camera = CAMERA._replace(degree=0)
    got = rung.load().apply(broken, torch.eye(4), camera)
    want = rung.load().apply(Splats(*(tensor[kept] for tensor in scene)), torch.eye(4), camera)
    assert float((got.color - want.color).abs().max()) < 1e-5
