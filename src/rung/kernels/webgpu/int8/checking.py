"""Products with activations as signed bytes, on a GPU, against NumPy."""

from __future__ import annotations

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.webgpu.gpu import gpu
from rung.kernels.webgpu.info import INFO, SHARED_ROWS
from rung.kernels.webgpu.int8.tiles import Tile
from rung.kernels.webgpu.int8.units import rounded, units_bytes, units_of
from rung.kernels.webgpu.layouts import UNIT, has_integers
from rung.kernels.webgpu.linear import Segment
from rung.kernels.webgpu.matrix import Matrix

#: Numbers of a row behind a norm: 32 units.
_NEAR_COLUMNS = 1024


def wrong(device_id: str, encoded: Encoded, rows: int) -> str:
    """Return where products of so many random rows (up to 16, or a multiple) with a weight, or the units made of them,
    differ from those of NumPy; empty where they do not."""
    device, (height, columns) = gpu(device_id), encoded.shape
    weight, random = Matrix.of_encoded(device, encoded), np.random.default_rng(rows)
    x = random.standard_normal((rows, columns), dtype=np.float32)
    gains = np.float32(1) + random.standard_normal(height, dtype=np.float32) / np.float32(4)
    piece, y = weight.pieces[0], device.buffer(4 * rows * height)
    output = device.buffer(units_bytes(rows, height))
    segment = Segment(weight.layout, height, piece.base)
    own = min(rows, SHARED_ROWS)
    product = Tile((segment,), columns, own, height, units=True, makes=True, after=0, blocks=rows // own)
    buffers = [
        device.upload([gains]),
        device.buffer(4 * INFO),
        device.upload([x]),
        y,
        device.upload([units_of(x)]),
        output,
    ]
    device.run([device.bind(product.kernel(), [piece.buffer, piece.buffer, *buffers], *product.grid)])
    found = device.read(y, 0, 4 * rows * height).view(np.float32).reshape(rows, height)
    taken = rounded(x) if has_integers(weight.layout) else x
    right = taken.astype(np.float64) @ formats.decode(encoded).astype(np.float64).T
    error = float(np.abs(found - right).max() / np.abs(right).std())
    if not error < 1e-5:
        return f"the largest error is {error:.1e} of a deviation"
    units = device.read(output, 0, units_bytes(rows, height)).view(np.uint32)
    return _wrong_units(units.reshape(rows, -1, 12), (found * gains).astype(np.float32), found)


def wrong_near(device_id: str) -> str:
    """Return whether units that a workgroup makes of one row for itself miss it by more than those of NumPy, by a
    product with a weight that is diagonal; empty where they do not."""
    device, size = gpu(device_id), _NEAR_COLUMNS
    encoded = formats.encode(np.eye(size, dtype=np.float32), formats.get("q8_0"), "")
    weight, x = Matrix.of_encoded(device, encoded), np.random.default_rng(3).standard_normal((1, size), np.float32)
    piece, y, info = weight.pieces[0], device.buffer(4 * size), device.buffer(4 * INFO)
    product = Tile((Segment(weight.layout, size, piece.base),), size, 1, size, epsilon=1e-6, post=0)
    others = [device.upload([np.ones(size, np.float32)]), info, device.upload([x]), y, device.buffer(4 * size)]
    device.run([device.bind(product.kernel(), [piece.buffer, piece.buffer, *others], *product.grid)])
    found = device.read(y, 0, 4 * size).view(np.float32) / formats.decode(encoded).diagonal()
    missed, least = (((each - x).reshape(-1, UNIT) ** 2).sum(axis=1) for each in (found, rounded(x, near=True)))
    return "" if (missed <= 1.001 * least).all() else "a unit of a row behind a norm misses it by more than it need"


def _wrong_units(units: np.ndarray, scaled: Floats, found: np.ndarray) -> str:
    """Compare units: where two scales or two codes miss a number by the same, either may be there; sums of the codes
    and squares may not differ."""
    codes, own = units[..., :8].view(np.int8).astype(np.int32), units_of(scaled)
    numbers = scaled.reshape(codes.shape)
    misses = [
        ((each[..., :8].view(np.int8) * each[..., 8:9].view(np.float32) - numbers) ** 2).sum(axis=2, dtype=np.float64)
        for each in (units, own)
    ]
    if not (misses[0] <= 1.001 * misses[1]).all():
        return "a code of the result, or a scale, is wrong"
    sums = codes.reshape(*codes.shape[:2], 2, 16).sum(axis=3)
    squares = (found.astype(np.float64) ** 2).reshape(*codes.shape[:2], 32).sum(axis=2)
    if (sums != units[..., 9:11].view(np.int32)).any():
        return "a sum of codes of the result is wrong"
    return "a sum of squares is wrong" if (np.abs(units[..., 11].view(np.float32) / squares - 1) > 1e-5).any() else ""
