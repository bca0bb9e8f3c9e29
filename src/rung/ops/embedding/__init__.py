"""Rows of a weight [vocabulary, hidden] by token id.

Contract of every rung's ``impl`` object::

    prepare(encoded, *, dtype, threads) -> state
    look_up(state, ids) -> Tensor
    rows(state, ids: Sequence[int]) -> float32 array [T, hidden]
    restore(state) -> Encoded

``prepare`` and ``restore`` are those of ``rung.ops.linear``: a tied head and the embedding share the state of a
packing. ``ids`` is int64 [T], every id within the vocabulary; the result is f32 [T, hidden] on the device of ``ids``,
with exactly the values that ``rung.formats.decode`` gives. ``rows`` is the same without torch.

Of a ``Case``: ``shape`` is (T, vocabulary, hidden), ``format`` the weight's.
"""

from __future__ import annotations

from rung import formats
from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Rung, Verdict, no
from rung.kernels.cpu.pack.layouts import FORMATS, divides
from rung.kernels.cuda.block_readers import BLOCKS


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """One token."""
    return [("look up", Case("embedding", format, dtype, (1, 32000, 4096)))]


def check_rows(case: Case, device: Device) -> Verdict:
    """Rows that can be packed."""
    columns = case.shape[2]
    if not divides(formats.get(case.format), columns):
        return no(f"cannot pack rows of {columns} weights in {case.format}")
    return YES


LADDER = register_ladder(
    Ladder(
        "embedding",
        (
            Rung(
                "embedding",
                "numba.rows",
                "rung.ops.embedding.numba_rows:RUNG",
                kinds=("cpu",),
                needs=("isa.kernels", "package.numba"),
                formats=FORMATS,
                check="rung.ops.embedding:check_rows",
                packing="r16",
            ),
            Rung(
                "embedding",
                "webgpu.rows",
                "rung.ops.embedding.webgpu_rows:RUNG",
                kinds=("webgpu",),
                needs=("package.wgpu",),
                formats=(*FORMATS, "f32", "f16", "bf16"),
                check="rung.ops.embedding:check_rows",
                packing="webgpu",
            ),
            Rung(
                "embedding",
                "numpy.rows",
                "rung.ops.embedding.numpy_rows:RUNG",
                kinds=("cpu", "webgpu"),
            ),
            Rung(
                "embedding",
                "cuda.stored",
                "rung.ops.embedding.torch_decode:GATHERED",
                kinds=("cuda", "rocm"),
                needs=("package.torch",),
                formats=("int8", "llm_int8", *BLOCKS),
                check="rung.ops.linear:check_cuda",
            ),
            Rung("embedding", "torch.decode", "rung.ops.embedding.torch_decode:RUNG", needs=("package.torch",)),
            Rung("embedding", "ref", "rung.ops.embedding.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
