"""Rows of a stored weight by token id.

Contract of every rung's ``impl`` object::

    prepare(encoded: Encoded, *, dtype: str, threads: int) -> State
    look_up(state, ids: Tensor [T] int64) -> Tensor [T, in] f32

The rows are what the stored weight decodes to, exactly. A rung shares the state of ``linear`` rungs with its
packing, so that a tied head holds the matrix once. Of a ``Case``: ``shape`` is (tokens, vocabulary, hidden).
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import Ladder, Rung

LADDER = register_ladder(
    Ladder(
        "embedding",
        (
            Rung("embedding", "torch.decode", "rung.ops.embedding.torch_decode:RUNG", needs=("package.torch",)),
            Rung("embedding", "ref", "rung.ops.embedding.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
