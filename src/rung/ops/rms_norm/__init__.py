"""Rows divided by their root mean square, times weights: the norm of most decoders (arXiv:1910.07467).

Contract of every rung's ``impl`` object::

    apply(x, weight, *, epsilon) -> Tensor

- ``x`` is [T, hidden] f32, ``weight`` [hidden] f32; the result is [T, hidden] f32. Nothing that is passed in changes.

Of a ``Case``: ``shape`` is (rows, hidden).
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import Case, Ladder, Rung

EXAMPLE_FORMATS = ("f32",)


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """A token, and a chunk of a prompt."""
    return [(f"{rows} rows", Case("rms_norm", format, dtype, (rows, 4096))) for rows in (1, 256)]


LADDER = register_ladder(
    Ladder(
        "rms_norm",
        (
            Rung("rms_norm", "torch.fused", "rung.ops.rms_norm.torch_fused:RUNG", needs=("package.torch",)),
            Rung("rms_norm", "ref", "rung.ops.rms_norm.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
