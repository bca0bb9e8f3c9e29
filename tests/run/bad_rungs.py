"""Rungs that fail in the ways that rungs fail, and one that works; they are imported in the child too."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rung import formats
from rung.core.types import Ladder, Rung
from rung.formats import Encoded
from rung.ops import LADDERS


class Good:
    """Decodes, multiplies in f32."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Any:
        return encoded, torch.from_numpy(formats.decode(encoded))

    def apply(self, state: Any, x: Tensor) -> Tensor:
        return x @ state[1].T

    def restore(self, state: Any) -> Encoded:
        return state[0]


class WrongRow(Good):
    """One row of the weight counts 1.5 times."""

    def apply(self, state: Any, x: Tensor) -> Tensor:
        y = super().apply(state, x)
        y[:, 41] *= 1.5
        return y


class Nan(Good):
    """One value of the result is NaN."""

    def apply(self, state: Any, x: Tensor) -> Tensor:
        y = super().apply(state, x)
        y[-1, -1] = float("nan")
        return y


class Segfault(Good):
    """Reads address zero."""

    def apply(self, state: Any, x: Tensor) -> Tensor:
        ctypes.string_at(0)
        return super().apply(state, x)


class Refuses(Good):
    """Passes its self-check, then says what a V100 says."""

    armed = False
    message = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`"

    def apply(self, state: Any, x: Tensor) -> Tensor:
        if Refuses.armed:
            raise RuntimeError(Refuses.message)
        return super().apply(state, x)


class Rows(Good):
    """Rows of what ``Good`` holds; says what a V100 says where it is told to."""

    armed = False

    def look_up(self, state: Any, ids: Tensor) -> Tensor:
        if Rows.armed:
            raise RuntimeError(Refuses.message)
        return state[1][ids]

    def rows(self, state: Any, ids: Any) -> Any:
        return self.look_up(state, torch.tensor(ids)).numpy()


ROWS = Rows()
GOOD, WRONG_ROW, NAN, SEGFAULT, REFUSES = Good(), WrongRow(), Nan(), Segfault(), Refuses()


def ladder(name: str, packing: str = "special") -> Ladder:
    """The ladder of linear with one of these rungs above ``ref``."""
    top = Rung("linear", f"test.{name.lower()}", f"tests.run.bad_rungs:{name}", packing=packing)
    return Ladder("linear", (top, Rung("linear", "ref", "tests.run.bad_rungs:GOOD")))


class Vanished:
    """Leave out splats too small to see, as on the integrated GPU of Brush's reports: no error, other numbers."""

    def apply(self, splats: Any, pose: Any, camera: Any, screen: Any = None) -> Any:
        visible = splats.scales.amax(1) > 0.02
        splats = splats._replace(opacities=splats.opacities * visible)
        return LADDERS["rasterize"].rung("ref").load().apply(splats, pose, camera, screen)


class LosesGradients:
    """One splat in a thousand does not learn."""

    def apply(self, splats: Any, pose: Any, camera: Any, screen: Any = None) -> Any:
        lost = (torch.arange(len(splats.means)) % 1000 == 500)[:, None]
        splats = splats._replace(means=torch.where(lost, splats.means.detach(), splats.means))
        return LADDERS["rasterize"].rung("ref").load().apply(splats, pose, camera, screen)


class NoUnit:
    """Brush on a card without 16x16x16 matrix units."""

    def apply(self, *arguments: Any) -> Any:
        raise RuntimeError(
            "Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported."
        )


VANISHED, LOSES_GRADIENTS, NO_UNIT = Vanished(), LosesGradients(), NoUnit()
