"""The specification of rms_norm, in plain torch."""

from __future__ import annotations

from torch import Tensor


class Reference:
    """See ``rung.ops.rms_norm``."""

    def apply(self, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        """[T, hidden] -> [T, hidden]"""
        return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


RUNG = Reference()
