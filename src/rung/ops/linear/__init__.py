"""A weight [out, in] in a stored format times activations: y = x W^T.

Contract of every rung's ``impl`` object::

    prepare(encoded, *, dtype, threads) -> state
    apply(state, x) -> Tensor
    multiply(state, x) -> float32 array
    restore(state) -> Encoded

- ``prepare`` takes an ``Encoded`` of shape (out, in). It does not change it and may keep it. ``dtype`` is what the
  plan computes in (f32, bf16, f16), ``threads`` how many threads may run.
  Rungs whose packing lies on a device (``ON_DEVICE``) are told which one as ``device``.
- ``x`` is [M, in], f32 on a CPU; the result is [M, out] in the dtype and on the device of ``x``.
- ``multiply`` is the same with float32 arrays on a CPU: [M, in], whose rows may lie apart, to [M, out]. Rungs that do
  not need ``package.torch`` have it and import no torch; rungs that do have ``apply``. Compiled ones have both.
- ``multiply_into(state, x, y)``, which rungs may have, writes the same to ``y``, [M, out] without gaps.
- ``restore`` is the exact way back: every part bit for bit as it was stored.
- ``decode(state, first, last, device, dtype)``, which rungs of stored weights may have, is the rows [first, last) in
  f32, f16 or bf16 on a device of torch.

Rungs with one ``packing`` share a state: what one prepared, all of them apply and restore. ``r16`` is
``rung.kernels.cpu.pack.packing.Packed``, and so is ``mapped``, whose rows are packed whenever they are multiplied;
``webgpu`` is ``rung.kernels.webgpu.matrix.Matrix``; ``cuda`` is ``rung.ops.linear.cuda_rows.Packed``;
``stored`` is ``rung.kernels.gpu.stored.Stored``, the weight as its format stores it.

Of a ``Case``: ``shape`` is (M, out, in), ``format`` the weight's, ``dtype`` what is computed in.
"""

from __future__ import annotations

import re

from rung import formats
from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Level, Rung, StepClass, Verdict, no
from rung.kernels.cpu.pack.layouts import FORMATS, MAPPED, divides
from rung.kernels.cuda.block_readers import BLOCKS
from rung.kernels.cuda.readers import STORED
from rung.kernels.cuda.source import MOST_ROWS

#: Formats of floats, whose rows are read as they are stored.
READ_AS_STORED = ("f32", "f16", "bf16", "e4m3")

#: What a product is asked to compute in.
EXAMPLE_DTYPES = ("f32", "f16", "bf16")

#: Packings that lie on a device, and not wherever a product asks for them.
ON_DEVICE = ("webgpu", "cuda")

#: Rungs that decode weights before they multiply.
DECODING = ("torch.decode", "numpy.decode", "ref")

#: Compute capability, ten times, from which on the releases of NVRTC compile; a newer one is taken like the last.
OLDEST = {12: 50, 13: 75}

#: Rows of activations that the row kernels take at once; the tile kernels start above.
FEW = 8


def shape_class(case: Case) -> str:
    """Few rows, or many."""
    return "few" if case.shape[0] <= FEW else "many"


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """A token, and a chunk of a prompt."""
    counts = {"1 row": 1, "256 rows": 256}
    return [(name, Case("linear", format, dtype, (count, 4096, 4096))) for name, count in counts.items()]


def _columns(case: Case) -> Verdict:
    columns, format = case.shape[2], formats.get(case.format)
    if case.format.split(":")[0] not in READ_AS_STORED:
        fits = divides(format, columns)
    else:
        vectors = format.layout == "rows" and (format.block % 16 == 0 or format.family == "floats")
        fits = vectors and columns % max(16, format.block) == 0
    return YES if fits else no(f"has no kernel for rows of {columns} weights in {case.format}")


def check_row(case: Case, device: Device) -> Verdict:
    """Few rows of activations, and rows of weights that blocks divide."""
    if case.shape[0] > FEW:
        return no(f"multiplies up to {FEW} rows at a time, asked for {case.shape[0]}")
    return _columns(case)


def check_mapped(case: Case, device: Device) -> Verdict:
    """Rows of weights that blocks divide."""
    return _columns(case)


def check_tile(case: Case, device: Device) -> Verdict:
    """Many rows of activations, and rows of weights that blocks divide."""
    if case.shape[0] <= FEW:
        return no(f"is for more than {FEW} rows, asked for {case.shape[0]}")
    return _columns(case)


def check_webgpu(case: Case, device: Device) -> Verdict:
    """Rows of weights that units of 32 columns and blocks divide, in their own order."""
    columns, format = case.shape[2], formats.get(case.format)
    if format.layout == "ordered" or not divides(format, columns):
        return no(f"has no kernel for rows of {columns} weights in {case.format}")
    return YES


def check_cuda(case: Case, device: Device) -> Verdict:
    """Rows of weights that units of 32 columns and blocks divide, in their own order, and a compiler of CUDA C for the
    card."""
    columns, format = case.shape[2], formats.get(case.format)
    if format.layout == "ordered" or not divides(format, columns):
        return no(f"has no kernel for rows of {columns} weights in {case.format}")
    if case.shape[0] > MOST_ROWS and not (product := check_decode(case, device)):
        return product
    name = "hiprtc" if device.kind == "rocm" else "nvrtc"
    version = device.software.get(name, "")
    if not version:
        return no(f"{name}, which compiles its kernels, is not known to be there", StepClass.UNAVAILABLE)
    capability = re.fullmatch(r"sm_(\d+)[a-z]?", device.arch)
    if not capability or not version.isdecimal():
        return YES
    if int(version) < min(OLDEST):
        return no(f"NVRTC {version} is older than {min(OLDEST)}, which its kernels are for", StepClass.UNAVAILABLE)
    oldest = OLDEST.get(int(version), max(OLDEST.values()))
    if int(capability[1]) < oldest:
        return no(f"NVRTC {version} compiles from compute capability {oldest / 10} on", StepClass.UNAVAILABLE)
    return YES


def check_decode(case: Case, device: Device) -> Verdict:
    """f16 arithmetic only where the device has it: without it a product in f16 is up to hundreds of times slower."""
    if case.dtype in ("f16", "bf16") and device.capability(f"matmul.{case.dtype}").level not in (
        Level.NATIVE,
        Level.EMULATED,
    ):
        return no(f"{device.name} has no proven matmul in {case.dtype}")
    return YES


_KERNELS = ("isa.kernels", "package.numba")

LADDER = register_ladder(
    Ladder(
        "linear",
        (
            Rung(
                "linear",
                "numba.row",
                "rung.ops.linear.numba_r16:ROW",
                kinds=("cpu",),
                needs=_KERNELS,
                formats=FORMATS,
                check="rung.ops.linear:check_row",
                packing="r16",
            ),
            Rung(
                "linear",
                "numba.tile",
                "rung.ops.linear.numba_r16:TILE",
                kinds=("cpu",),
                needs=_KERNELS,
                formats=FORMATS,
                check="rung.ops.linear:check_tile",
                packing="r16",
            ),
            Rung(
                "linear",
                "numba.mapped",
                "rung.ops.linear.numba_r16:MAPPED",
                kinds=("cpu",),
                needs=_KERNELS,
                formats=MAPPED,
                check="rung.ops.linear:check_mapped",
                packing="mapped",
            ),
            Rung(
                "linear",
                "numba.stored",
                "rung.ops.linear.numba_stored:RUNG",
                kinds=("cpu",),
                needs=_KERNELS,
                formats=READ_AS_STORED,
                check="rung.ops.linear:check_row",
            ),
            Rung(
                "linear",
                "webgpu.rows",
                "rung.ops.linear.webgpu_rows:RUNG",
                kinds=("webgpu",),
                needs=("package.wgpu",),
                formats=(*FORMATS, "f32", "f16", "bf16"),
                check="rung.ops.linear:check_webgpu",
                packing="webgpu",
            ),
            Rung(
                "linear",
                "cuda.rows",
                "rung.ops.linear.cuda_rows:RUNG",
                kinds=("cuda", "rocm"),
                needs=("package.torch",),
                formats=tuple(name for name in FORMATS if name not in STORED),
                check="rung.ops.linear:check_cuda",
                packing="cuda",
            ),
            Rung(
                "linear",
                "cuda.stored",
                "rung.ops.linear.cuda_stored:RUNG",
                kinds=("cuda", "rocm"),
                needs=("package.torch",),
                formats=(*STORED, *BLOCKS),
                check="rung.ops.linear:check_cuda",
            ),
            Rung(
                "linear",
                "numpy.decode",
                "rung.ops.linear.numpy_decode:RUNG",
                kinds=("cpu",),
                check="rung.ops:check_no_torch",
            ),
            Rung(
                "linear",
                "torch.decode",
                "rung.ops.linear.torch_decode:RUNG",
                needs=("package.torch",),
                check="rung.ops.linear:check_decode",
            ),
            Rung("linear", "ref", "rung.ops.linear.ref:RUNG", needs=("package.torch",)),
        ),
    )
)
