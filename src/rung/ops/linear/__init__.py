"""A linear: activations times the transpose of a stored weight.

Contract of every rung's ``impl`` object::

    prepare(encoded: Encoded, *, dtype: str, threads: int) -> State
    apply(state, x) -> Tensor [T, out]
    restore(state) -> Encoded

- ``encoded`` is a weight [out, in]; ``dtype`` is what the plan multiplies in where a rung decodes.
- ``x`` [T, in] is f32 on a CPU; the result has its dtype and device.
- ``restore`` gives the weight as it was stored, bit for bit.

Of a ``Case``: ``shape`` is (rows of x, out, in).
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import Ladder, Rung

LADDER = register_ladder(
    Ladder(
        "linear",
        (
            Rung("linear", "torch.decode", "rung.ops.linear.torch_decode:RUNG", needs=("package.torch",)),
            Rung("linear", "ref", "rung.ops.linear.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
