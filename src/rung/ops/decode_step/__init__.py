"""One token through the whole decoder: embedding, layers, head.

Contract of every rung's ``impl`` object::

    prepare(network: Network, cache: Cache, *, threads: int) -> State
    apply(state, token: int, position: int) -> Tensor [vocabulary] f32

``network`` (``rung.ops.decode_step.network``) is a decoder bound to its parts, ``cache`` what it writes to:
``apply`` writes the keys and values of ``position`` into every layer, reads those before it, and changes nothing
else; the caller advances the cache. So a call that failed can be repeated one rung lower. The tensor it returns
is the caller's.

Of a ``Case``: ``shape`` is (layers, hidden, feed_forward, vocabulary), ``format`` the dtype of the cache. Options:
``packings``, the layouts of the linears that are bound (``r16``, ``stored``), ``head_dim``, and ``devices``, how many
hold layers.
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Rung, Verdict, no


def check_step(case: Case, device: Device) -> Verdict:
    """Every linear has a kernel for one row, every length fills vectors of 16, all layers are on this device."""
    _, hidden, feed_forward, _ = case.shape
    others = [packing for packing in case.options.get("packings", ("stored",)) if packing != "r16"]
    if others:
        return no(f"a linear of this model is held as {others[0]}, which has no kernel for single rows")
    if case.options.get("devices", 1) != 1:
        return no("the layers lie on several devices")
    for noun, length in (("hidden", hidden), ("feed_forward", feed_forward), ("head_dim", case.options["head_dim"])):
        if length % 16:
            return no(f"{noun} is {length}, no multiple of 16")
    return YES


LADDER = register_ladder(
    Ladder(
        "decode_step",
        (
            Rung(
                "decode_step",
                "numba.step",
                "rung.ops.decode_step.numba_step:RUNG",
                kinds=("cpu",),
                needs=("package.numba", "isa.avx512_vnni"),
                formats=("f32", "f16"),
                check="rung.ops.decode_step:check_step",
            ),
            Rung("decode_step", "ref", "rung.ops.decode_step.ref:RUNG"),
        ),
    )
)
