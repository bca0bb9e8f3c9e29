"""Texts through the layers of an encoder of the kind of BERT: from token ids to hidden states.

Contract of every rung's ``impl`` object::

    prepare(weights: EncoderWeights, *, threads: int) -> State
    apply(state, texts: Sequence[Sequence[int]]) -> float32 array [tokens, hidden]

``weights`` (``rung.ops.encoder.weights``) are the bound parts of an encoder. ``texts`` are token ids of one or more
texts, none of them empty. Each token sees all tokens of its text, and no other. The result has the rows of all texts,
one after the other, and lies in memory of its own. ``apply`` changes nothing else: a call that failed can be repeated
one rung lower.

Of a ``Case``: ``shape`` is (layers, hidden, feed_forward, heads), ``format`` is f32. Options: ``activation``.
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Rung, Verdict, no
from rung.core.value import FrozenDict

EXAMPLE_FORMATS = ("f32",)


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """Texts of all-MiniLM-L6-v2."""
    return [("texts", Case("encoder", format, dtype, (6, 384, 1536, 12), FrozenDict({"activation": "gelu"})))]


def check_layers(case: Case, device: Device) -> Verdict:
    """Every length fills vectors of 16."""
    _, hidden, feed_forward, heads = case.shape
    for noun, length in (("hidden", hidden), ("feed_forward", feed_forward), ("head_dim", hidden // heads)):
        if length % 16:
            return no(f"{noun} is {length}, no multiple of 16")
    return YES


LADDER = register_ladder(
    Ladder(
        "encoder",
        (
            Rung(
                "encoder",
                "numba.layers",
                "rung.ops.encoder.numba_layers:RUNG",
                kinds=("cpu",),
                needs=("isa.kernels", "package.numba"),
                formats=("f32",),
                check="rung.ops.encoder:check_layers",
            ),
            Rung(
                "encoder",
                "numpy.layers",
                "rung.ops.encoder.numpy_layers:RUNG",
                kinds=("cpu",),
                formats=("f32",),
                check="rung.ops:check_no_torch",
            ),
            Rung("encoder", "ref", "rung.ops.encoder.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
