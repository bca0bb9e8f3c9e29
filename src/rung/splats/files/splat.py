"""The ``.splat`` format of web viewers: 32 bytes a splat, without a header and without harmonics.

Centre and scales as float32, then colour, opacity and rotation (w first) in a byte each. Written largest and most
opaque first, the order in which viewers load. Source: the converter of antimatter15/splat.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rung.core.errors import BadFile
from rung.splats.cloud import Cloud

_ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("quat", "u1", 4)])
#: The first harmonic: what a colour's distance from grey is divided by.
_C0 = 0.28209479177387814
_WAYS = ["export the scene again, as .splat or as binary PLY"]


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, and ``OSError``."""
    if path.stat().st_size % _ROW.itemsize:
        raise BadFile(f"{path} is not a file of splats: its size is no multiple of 32 bytes.", [], _WAYS)
    rows = np.fromfile(path, _ROW)
    if not np.isfinite(rows["mean"]).all() or not (np.isfinite(rows["scale"]) & (rows["scale"] >= 0)).all():
        raise BadFile(f"{path} is not a file of splats: centres or scales are no numbers.", [], _WAYS)
    colors = (rows["color"][:, :3].astype(np.float32) / 255 - 0.5) / np.float32(_C0)
    opacities = np.clip(rows["color"][:, 3] / 255, 1 / 510, 1 - 1 / 510)  # a byte's half: 0 and 1 have no logit
    return Cloud(
        rows["mean"],
        ((rows["quat"].astype(np.float32) - 128) / 128).astype(np.float32),
        np.log(np.maximum(rows["scale"], np.float32(1e-20))),
        np.log(opacities / (1 - opacities)).astype(np.float32),
        colors[:, None, :].astype(np.float32),
    )


def encode(cloud: Cloud) -> bytes:
    """The file's bytes; harmonics above the first are lost."""
    order = np.argsort(-np.exp(cloud.log_scales.sum(1, dtype=np.float64)) * cloud.opacities, kind="stable")
    rows = np.empty(len(cloud.means), _ROW)
    rows["mean"], rows["scale"] = cloud.means, cloud.scales
    colors = np.concatenate([0.5 + _C0 * cloud.harmonics[:, 0], cloud.opacities[:, None]], axis=1)
    rows["color"] = np.clip(np.rint(colors * 255), 0, 255)
    units = cloud.quats / np.maximum(np.linalg.norm(cloud.quats, axis=1, keepdims=True), 1e-12)
    rows["quat"] = np.clip(np.rint(units * 128 + 128), 0, 255)
    return rows[order].tobytes()
