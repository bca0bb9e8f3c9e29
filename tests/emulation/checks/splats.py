"""Splats and their training: pictures, losses, colors and Adam's steps, beside what torch computed.

``splats.npz`` holds scenes with what ``ref`` makes of them, written by ``keeping``. Loss and Adam's step are computed
here, in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu import adam
from rung.kernels.cpu.named_words import NamedWords
from rung.kernels.cpu.splat import colors, ssim
from rung.kernels.isa.splats import OUTPUTS, STATE
from rung.measure.metrics import SSIM_CONSTANTS, ssim_window, structural_similarity
from rung.ops.rasterize import TILE, Camera, Splats
from rung.ops.rasterize.compiled_picture import CompiledPicture
from rung.ops.rasterize.self_check import wrong_gradients, wrong_picture
from tests.emulation.checks import Check

#: Scenes with what torch makes of them.
KEPT = Path(__file__).parents[1] / "splats.npz"
#: Cameras of the pictures by name: with harmonics, and with plain colors.
CAMERAS = {
    "harmonics": Camera(39, 34, 40.0, 41.0, 19.5, 17.5, 3, True),
    "colors": Camera(34, 39, 40.0, 41.0, 16.5, 20.5, None, False),
}
#: Degrees of harmonics by what holds them.
DTYPES = {"f32": 3, "f16": 2}
#: What a step of Adam goes by, and the number of the step.
BETAS, EPSILON, TAKEN = (0.9, 0.999), 1e-15, 7
_THREADS, _LANES, _SHARE = 2, 16, 0.2
Arrays = Mapping[str, npt.NDArray[Any]]


def kept(name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a check by their names."""
    with np.load(KEPT) as whole:
        return {key.removeprefix(f"{name}."): whole[key] for key in whole.files if key.startswith(f"{name}.")}


def picture(name: str) -> str:
    """A picture, and the gradients of a sum of it by splats and pose; twice on as many threads as there are."""
    camera, arrays = CAMERAS[name], kept(name)
    splats = {field: arrays[field] for field in Splats._fields}
    drawn = CompiledPicture(splats, np.eye(4, dtype=np.float32), camera)
    planes = drawn.states.transpose(3, 0, 2, 1, 4).reshape(STATE, TILE * drawn.down, TILE * drawn.across)
    planes = planes[:, : camera.height, : camera.width]
    got = {"color": planes[1:4].transpose(1, 2, 0), "alpha": 1 - np.abs(planes[0]), "depth": planes[4]}
    want = {each: arrays[f"right.{each}"] for each in ("color", "alpha", "depth", *Splats._fields, "pose", "screen")}
    if reason := wrong_picture(got, want):
        return reason
    upstream = np.zeros((OUTPUTS, TILE * drawn.down, TILE * drawn.across), np.float32)
    upstream[:3, : camera.height, : camera.width] = arrays["given.color"].transpose(2, 0, 1)
    upstream[3, : camera.height, : camera.width] = arrays["given.depth"]
    upstream[4, : camera.height, : camera.width] = arrays["given.alpha"]
    upstream = upstream.reshape(OUTPUTS, drawn.down, TILE, drawn.across, TILE).transpose(1, 3, 2, 0, 4)
    found, screen, pose = drawn.back(splats, np.ascontiguousarray(upstream), True)
    pose = np.concatenate([pose, np.zeros((1, 4), np.float32)])
    right = {each: want[each] for each in (*Splats._fields, "pose", "screen")}
    return wrong_gradients({**found, "pose": pose, "screen": screen}, right)


def loss() -> str:
    """L1 and SSIM of two pictures, and the gradient: SSIM's by steps along the imaginary axis, which round nothing."""
    height, width = 19, 23
    generator = np.random.default_rng(2)
    drawn, truth = generator.random((2, height, 3 * width)).astype(np.float32)
    weights = ssim_window(height, width)
    value, gradient = _likeness(drawn, truth, weights.astype(np.float32))
    x, y = (each.astype(np.float64).reshape(height, width, 3) for each in (drawn, truth))
    right = (1 - _SHARE) * np.abs(x - y).mean() + _SHARE * (1 - _similarity(x, y, weights).real)
    if abs(value - right) > 1e-6:
        return f"the loss is {value:.7f} instead of {right:.7f}"
    for _ in range(24):
        at = tuple(int(generator.integers(side)) for side in x.shape)
        moved = x.astype(complex)
        moved[at] += 1e-20j
        slope = -_SHARE * _similarity(moved, y, weights).imag / 1e-20
        slope += (1 - _SHARE) * np.sign(x[at] - y[at]) / x.size
        if abs(gradient[at] - slope) > 2e-7:
            return f"the gradient at {at} is {gradient[at]:.8f} instead of {slope:.8f}"
    return ""


def _similarity(x: npt.NDArray[Any], y: npt.NDArray[Any], weights: npt.NDArray[Any]) -> Any:
    def blur(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        for axis in (0, 1):
            values = np.lib.stride_tricks.sliding_window_view(values, len(weights), axis=axis) @ weights
        return values

    return structural_similarity(x, y, blur).mean()


def _likeness(drawn: Any, truth: Any, weights: Any) -> tuple[float, npt.NDArray[np.float32]]:
    """Return the loss of pictures f32 [height, 3 width] by the kernels, and its gradient [height, width, 3]."""
    (height, wide), window = drawn.shape, len(weights)
    stride = -(-wide // _LANES) * _LANES
    last = wide - 3 * (window - 1)
    padded = np.zeros((2, height, stride), np.float32)
    padded[:, :, :wide] = drawn, truth
    sums, gradient = np.zeros((height, 2)), np.empty((height, stride), np.float32)
    words = NamedWords(ssim.WORDS)
    words.set(height=height, wide=wide, stride=stride, window=window, weights=weights, made=padded[0], truth=padded[1])
    words.set(slopes=np.empty((3, height, stride), np.float32), inside=(np.arange(stride) < last).astype(np.float32))
    windows = (height - window + 1) * last
    shares = np.array([(1 - _SHARE) / drawn.size, _SHARE / windows, *SSIM_CONSTANTS], np.float32)
    words.set(sums=sums, shares=shares, gradient=gradient)
    for kernel in (ssim.compare, ssim.back):
        words.set(scratch=np.zeros((_THREADS, 5, stride + 2 * ssim.MARGIN), np.float32))
        words.run(kernel, _THREADS)
    away, near = sums.sum(0).tolist()
    value = (1 - _SHARE) * away / drawn.size + _SHARE * (1 - near / windows)
    return value, gradient[:, :wide].reshape(height, wide // 3, 3)


def adam_step() -> str:
    """Three steps of Adam on values that fill no vector, with a rate for each column."""
    generator, count, rates = np.random.default_rng(4), 1003, np.array([1e-2, 3e-2, 2e-2])
    values = generator.random(count, np.float32)
    right, first, second = values.astype(np.float64), np.zeros((2, count)), np.zeros((2, count), np.float32)
    for taken in range(1, 4):
        gradient = generator.standard_normal(count, np.float32)
        first[0] = BETAS[0] * first[0] + (1 - BETAS[0]) * gradient
        first[1] = BETAS[1] * first[1] + (1 - BETAS[1]) * gradient.astype(np.float64) ** 2
        means = first[0] / (1 - BETAS[0] ** taken), first[1] / (1 - BETAS[1] ** taken)
        right -= np.resize(rates, count) * means[0] / (np.sqrt(means[1]) + EPSILON)
        table = np.tile(rates.astype(np.float32), _LANES) * np.float32(1 / (1 - BETAS[0] ** taken))
        arrays = {"values": values, "gradient": gradient, "first": second[0], "second": second[1], "rates": table}
        words = NamedWords(adam.WORDS)
        words.set(count=count, period=len(table), settings=_settings(taken), **arrays)
        words.run(adam.step, _THREADS)
    error = float(np.abs(values - right).max())
    return "" if error < 1e-5 else f"a value is {error:.2g} off"


def _settings(taken: int) -> npt.NDArray[np.float32]:
    root = (1 - BETAS[1] ** taken) ** -0.5
    return np.array([1 - BETAS[0], 1 - BETAS[1], root, EPSILON], np.float32)


def harmonics(dtype: str) -> str:
    """Colors of harmonics, their gradients, and a step of Adam whose means are 8-bit codes."""
    arrays = kept(f"harmonics in {dtype}")
    rows, count = arrays["harmonics"].copy(), len(arrays["harmonics"])
    found = {name: np.empty((count, 3), np.float32) for name in ("colors", "g_means")}
    state = {name: arrays[name].copy() for name in ("first", "first_sizes", "second", "second_sizes")}
    upstream = arrays["given"].copy()
    middles, lookup = colors.lookup_of(arrays["books"])
    rates = arrays["rates"] * np.float32(1 / (1 - BETAS[0] ** TAKEN))
    words = NamedWords(colors.WORDS)
    words.set(count=count, terms=rows.shape[1], degree=DTYPES[dtype], halves=int(dtype == "f16"), harmonics=rows)
    words.set(position=arrays["position"], means=arrays["means"], given=upstream, **found, **state)
    words.set(books=arrays["books"], middles=middles, lookup=lookup, rates=rates, settings=_settings(TAKEN), salt=TAKEN)
    words.set(scratch=np.empty(_THREADS * colors.SCRATCH))
    for kernel in (colors.shade, colors.shade_back, colors.learn):
        words.run(kernel, _THREADS)
    for name, array in (*found.items(), ("given", upstream)):
        right = arrays[f"right.{name}"]
        if not np.allclose(array, right, rtol=1e-4, atol=1e-5 * np.abs(right).max()):
            return f"{name}: {np.abs(array - right).max():.2g} off"
    return _wrong_step(rows, state, arrays)


def _wrong_step(rows: npt.NDArray[Any], state: Arrays, arrays: Arrays) -> str:
    """Return how harmonics and both means are wrong after a step; codes that lie on a border may be neighbors."""
    before, right = (arrays[name].astype(np.float64) for name in ("harmonics", "right.harmonics"))
    allowed = 1e-4 * np.abs(right - before) + 1e-6
    if rows.dtype == np.float16:  # rounded up or down by chance
        allowed += 2.0**-10 * np.maximum(np.abs(right), 2.0**-14)
    if (np.abs(rows.astype(np.float64) - right) > allowed).any():
        return "harmonics after a step"
    for name, array in state.items():
        if array.dtype == np.uint8:
            away = np.abs(array.astype(int) - arrays[f"right.{name}"])
            if away.max() > 1 or (away > 0).mean() > 0.01:
                return f"{name}: codes are others"
        elif not np.allclose(array, arrays[f"right.{name}"], rtol=1e-5, atol=0):
            return f"{name} are others"
    return ""


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    for name in CAMERAS:
        yield f"splats, {name}", lambda name=name: picture(name)  # type: ignore[misc]
    yield "loss of pictures", loss
    yield "step of Adam", adam_step
    for dtype in DTYPES:
        yield f"harmonics in {dtype}", lambda dtype=dtype: harmonics(dtype)  # type: ignore[misc]
