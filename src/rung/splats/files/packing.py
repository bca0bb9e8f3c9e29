"""Define what the compact formats share: bytes of opacities and colors, quaternions by their three smallest parts, and
the order of a curve through space."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rung.splats.cloud import Cloud, Floats

Bytes = npt.NDArray[np.uint8]
Indexes = npt.NDArray[np.int64]
#: Harmonics above the first for each degree.
REST = (0, 3, 8, 15)
#: A quarter of a byte's step: the opacities 0 and 1 have no logit, and come back as the byte that they were.
_QUARTER = 0.25 / 255
#: The parts of a quaternion without the largest, by the largest.
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def to_bytes(values: np.ndarray) -> Bytes:
    """The nearest whole numbers, held in 0 to 255."""
    result: Bytes = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return result


def opacity_bytes(cloud: Cloud) -> Bytes:
    """[N]: 255 is opaque."""
    return to_bytes(cloud.opacities * 255)


def logits(opacities: Bytes) -> Floats:
    """[N] of bytes."""
    values = np.clip(opacities / 255, _QUARTER, 1 - _QUARTER)
    return np.log(values / (1 - values)).astype(np.float32)


def smallest_three(quats: Floats) -> tuple[Indexes, Floats]:
    """Return, of unit quaternions [N, 4] in any order of their parts, which part is the largest [N], and the other
    three [N, 3] as those of the same rotation whose largest is positive, times sqrt(2): they lie in -1 to 1."""
    largest = np.abs(quats).argmax(1)
    signs = np.sign(np.take_along_axis(quats, largest[:, None], 1))
    three = np.take_along_axis(quats, _OTHERS[largest], 1) * signs * np.sqrt(2)
    return largest, np.clip(three, -1, 1).astype(np.float32)


def whole_quats(largest: Indexes, three: np.ndarray) -> Floats:
    """[N, 4] from what ``smallest_three`` gives."""
    quats = np.empty((len(largest), 4), np.float32)
    others = three / np.sqrt(2)
    np.put_along_axis(quats, _OTHERS[largest], others.astype(np.float32), 1)
    left = np.sqrt(np.maximum(0, 1 - (others**2).sum(1, keepdims=True)))
    np.put_along_axis(quats, largest[:, None], left.astype(np.float32), 1)
    return quats


def along_curve(means: Floats) -> Indexes:
    """[N]: an order in which neighbors in space are neighbors (Morton's, 21 bits an axis)."""
    if not len(means):
        return np.zeros(0, np.int64)
    low = means.min(0).astype(np.float64)
    cells = ((means - low) / np.maximum(means.max(0) - low, 1e-30) * (2**21 - 1)).astype(np.uint64)
    codes = np.zeros(len(means), np.uint64)
    for axis in range(3):
        codes |= spread_bits(cells[:, axis]) << np.uint64(axis)
    return np.argsort(codes, kind="stable")


def spread_bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """21 bits, each followed by two zeros."""
    steps = ((32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F))
    for shift, mask in (*steps, (4, 0x10C30C30C30C30C3), (2, 0x1249249249249249)):
        values = (values | values << np.uint64(shift)) & np.uint64(mask)
    return values
