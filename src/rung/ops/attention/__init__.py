"""Attention of new tokens over a cache: grouped heads, causal, with an optional window and soft cap.

Contract of every rung's ``impl`` object::

    apply(q, keys, values, *, start, scale, window, softcap) -> Tensor
    attend(q, keys, values, *, start, scale, window, softcap) -> float32 array

- ``q`` [T, H, D] f32: the queries of T new tokens; query ``t`` sits at position ``start + t``.
- ``keys``, ``values`` [S, KV, D] f32, f16 or bf16, any strides: the first ``S = start + T`` positions of a cache.
  H is a multiple of KV; query head ``h`` reads key head ``h // (H // KV)``.
- scores are ``scale * q.k``; with ``softcap`` c they become ``c * tanh(score / c)``; query position p sees the
  key positions in ``(p - window, p]``, or ``[0, p]`` without a window.
- returns [T, H, D] f32. Nothing that is passed in changes.
- ``attend`` is the same with arrays, without torch: rungs have it that do not need ``package.torch``.

Of a ``Case``: ``shape`` is (queries, keys, heads, kv_heads, head_dim), ``format`` the dtype of the cache, options
are ``window`` and ``softcap`` (None when absent).
"""

from __future__ import annotations

from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Rung, Verdict, no

#: Dtypes of the cache.
EXAMPLE_FORMATS = ("f32", "f16")


def shape_class(case: Case) -> str:
    """Few queries, or many."""
    return "few" if case.shape[0] <= 8 else "many"


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """A token, and a chunk of a prompt."""
    counts = {"1 query": 1, "256 queries": 256}
    return [(name, Case("attention", format, dtype, (count, 512, 8, 8, 128))) for name, count in counts.items()]


def check_vectors(case: Case, device: Device) -> Verdict:
    """Heads that fill vectors of 16, and a processor that converts f16."""
    head_dim = case.shape[4]
    if head_dim % 16:
        return no(f"needs heads of a multiple of 16, this model has {head_dim}")
    return YES


def check_decode(case: Case, device: Device) -> Verdict:
    """One query, and what ``check_vectors`` wants."""
    if case.shape[0] != 1:
        return no(f"computes one query at a time, asked for {case.shape[0]}")
    return check_vectors(case, device)


def _compiled(name: str, impl: str, check: str) -> Rung:
    return Rung(
        "attention",
        name,
        f"rung.ops.attention.{impl}:RUNG",
        kinds=("cpu",),
        needs=("isa.kernels", "package.numba"),
        formats=("f32", "f16", "bf16"),
        dtypes=("f32",),
        check=f"rung.ops.attention:{check}",
    )


LADDER = register_ladder(
    Ladder(
        "attention",
        (
            _compiled("numba.decode", "numba_rows", "check_decode"),
            _compiled("numba.prefill", "numba_rows", "check_vectors"),
            Rung(
                "attention",
                "numpy.sdpa",
                "rung.ops.attention.numpy_sdpa:RUNG",
                kinds=("cpu",),
                formats=("f32", "f16"),
                check="rung.ops:check_no_torch",
            ),
            Rung("attention", "torch.sdpa", "rung.ops.attention.torch_sdpa:RUNG", needs=("package.torch",)),
            Rung("attention", "ref", "rung.ops.attention.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
