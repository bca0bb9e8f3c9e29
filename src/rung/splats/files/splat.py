"""The ``.splat`` format of web viewers: 32 bytes a splat, without a header and without harmonics.

Center and scales as float32, then color, opacity and rotation (w first) in a byte each. Written largest and most
opaque first, the order in which viewers load. Source: the converter of antimatter15/splat.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rung.core.errors import BadFile
from rung.splats.cloud import C0, Cloud
from rung.splats.files.packing import logits, opacity_bytes, to_bytes

_ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("quat", "u1", 4)])
#: The logarithm of the largest scale that float32 holds.
_LARGEST = 88.0
_WAYS = ["export the scene again, as .splat or as binary PLY"]


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, and ``OSError``."""
    if path.stat().st_size % _ROW.itemsize:
        raise BadFile(f"{path} is not a file of splats: its size is no multiple of 32 bytes.", [], _WAYS)
    rows = np.fromfile(path, _ROW)
    if not (rows["scale"] >= 0).all():
        raise BadFile(f"{path} is not a file of splats: scales are below zero, or no numbers.", [], _WAYS)
    colors = (rows["color"][:, :3].astype(np.float32) / 255 - 0.5) / np.float32(C0)
    return Cloud(
        rows["mean"],
        ((rows["quat"].astype(np.float32) - 128) / 128).astype(np.float32),
        np.log(np.maximum(rows["scale"], np.float32(1e-20))),
        logits(rows["color"][:, 3]),
        colors[:, None, :].astype(np.float32),
    )


def encode(cloud: Cloud) -> Iterator[bytes]:
    """The file's bytes; harmonics above the first are lost."""
    order = np.argsort(-np.exp(cloud.log_scales.sum(1, dtype=np.float64)) * cloud.opacities, kind="stable")
    rows = np.empty(len(cloud.means), _ROW)
    rows["mean"], rows["scale"] = cloud.means, np.exp(np.minimum(cloud.log_scales, _LARGEST))
    rows["color"][:, :3] = to_bytes(cloud.tints * 255)
    rows["color"][:, 3] = opacity_bytes(cloud)
    rows["quat"] = to_bytes(cloud.units * 128 + 128)
    yield rows[order].tobytes()
