"""Check a rung of encoder: texts of several lengths through tiny encoders with seeded weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rung.core.types import Case, Rung
from rung.formats.codec import Floats
from rung.models.architectures.encoders import shapes
from rung.models.card import Encoder
from rung.ops.encoder import numpy_layers
from rung.ops.encoder.weights import EncoderWeights
from rung.ops.proof import SEED, compare

if TYPE_CHECKING:
    from torch import Tensor

#: Tokens of the texts: one, around four queries, around a vector and around two of them.
LENGTHS = (1, 3, 5, 16, 17, 31, 33)


class _Matrix:
    """A linear or an embedding of plain numbers."""

    without_torch = True

    def __init__(self, values: npt.NDArray[np.floating]) -> None:
        self._values = values

    def multiply(self, x: Floats) -> Floats:
        product: Floats = x @ self._values.T
        return product

    def rows(self, ids: Sequence[int]) -> Floats:
        found: Floats = self._values[list(ids)]
        return found

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        values = torch.from_numpy(self._values).to(x.device)
        return values[x] if x.dtype == torch.int64 else x @ values.T


class _Parts:
    """Seeded weights by role; see ``rung.ops.encoder.weights.EncoderParts``."""

    def __init__(self, shape: Encoder, dtype: type[np.floating], location: str, is_fused: bool) -> None:
        self._shapes, self._dtype, self.device_name, self._is_fused = shapes(shape), dtype, location, is_fused

    def holds(self, role: str) -> bool:
        return self._is_fused and role.endswith("qkv")

    def vector(self, role: str) -> Floats:
        shape = self._shapes[role]
        generator = np.random.default_rng([SEED, *role.encode()])
        values = generator.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 4)
        result: Floats = (values + role.endswith("norm")).astype(self._dtype)
        return result

    table = vector

    def linear(self, role: str) -> _Matrix:
        layer, _, name = role.rpartition(".")
        return _Matrix(np.concatenate([self.vector(f"{layer}.{each}") for each in (name if name == "qkv" else [name])]))

    def look_up(self) -> _Matrix:
        return _Matrix(self.vector("embed"))


def check(rung: Rung, case: Case, location: str) -> str:
    """Compare every value with that of NumPy in float64, for heads of two widths: q, k and v of one are one weight."""
    activation = case.options["activation"]
    texts = [np.random.default_rng([SEED, count]).integers(0, 83, count).tolist() for count in LENGTHS]
    for hidden, heads in ((64, 4), (96, 2)):
        shape = Encoder("tiny", 2, hidden, heads, 160, 83, 40, 2, 1e-12, activation)
        bound = EncoderWeights.bind(shape, _Parts(shape, np.float32, location, hidden == 64))  # type: ignore[arg-type]
        exact = EncoderWeights.bind(shape, _Parts(shape, np.float64, location, False))  # type: ignore[arg-type]
        implementation, reference = rung.load(), numpy_layers.RUNG
        got = implementation.apply(implementation.prepare(bound, threads=2), texts)
        want = reference.apply(reference.prepare(exact, threads=1), texts)
        if reason := compare(got, want, np.abs(want).max(axis=1, keepdims=True), 1e-5):
            return f"hidden {hidden}, heads {heads}: {reason}"
    return ""
