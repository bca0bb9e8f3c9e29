"""Compile and prove what tests of kernels have in common, before they start.

Each test would do it for its own formats: a child process that imports torch for every weight, and processes that run
at once would compile the same kernels. Here it is one child for each core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from rung import formats
from rung.core.types import Case, Device, Level, Rung
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.kernels.cpu.pack.layouts import FORMATS
from rung.ops import LADDERS
from rung.ops.linear import READ_AS_STORED
from rung.run import self_check
from rung.run.binding import SAMPLE, Binder
from rung.run.journal import Journal

_OTHERS = ("nf4:64:nested", "fp4:128:nested", "u4:32", "u4:32:bf16", "u4:32:ordered", "e4m3:32")
_FP8 = ("e4m3:32:bf16", "e4m3:64:bf16", "e4m3:128:bf16")
_OF_LAYOUTS = (formats.get(name).name for name in FORMATS if name not in ("u2", "u4", "u8"))
_NAMES = (*_OF_LAYOUTS, *READ_AS_STORED, *_OTHERS, *_FP8)
#: Formats of tiny models' embeddings; those that layers of f16 are multiplied in; those that bitsandbytes holds.
_ROWS = ("q8_0", "q6_k", "q4_1", "q5_0", "q5_k", "int8", "nf4:64", *READ_AS_STORED)
_HALF, _UNPACKED = ("nf4:64", "q8_0"), ("nf4:64", "fp4:64")
_SPLATS = Case("rasterize", "f32", "f32", (256, 256, 256), FrozenDict({"degree": 3, "antialiased": False}))
_MIXED = ("numba.row", "numba.stored")
_Proof = tuple[Rung | None, Case]


def _products(name: str, dtype: str) -> Iterator[Case]:
    for rows in (1, 256):
        yield Case("linear", name, dtype, (rows, 64, 512))


def _attention(cache: str) -> Iterator[Case]:
    for heads in ((8, 4, 64), (4, 2, 8)):
        for queries in (1, 256):
            yield Case("attention", cache, "f32", (queries, 256, *heads))


def _steps() -> Iterator[Case]:
    for cache, linears in (("f32", _MIXED[1:]), ("f16", _MIXED[1:]), ("f16", _MIXED[:1]), ("f16", _MIXED)):
        options = {"linears": linears, "head_dim": 64, "devices": 1}
        yield Case("decode_step", cache, "f32", (2, 512, 1024, 1000), FrozenDict(options))


def _climbed(binder: Binder, cases: Iterable[Case], apart: bool = False) -> list[_Proof]:
    return [(binder.unproved(case, apart), case) for case in cases]


def _proofs(cpu: Device) -> Iterator[list[_Proof]]:
    """The rungs that tests come to, each with a case; those of one list have kernels in common."""
    packed, unpacked = Binder(cpu, Journal()), Binder(cpu, Journal(), packed=False)
    dtypes = ("f32", "bf16") if cpu.capability("matmul.bf16").level is Level.NATIVE else ("f32",)
    yield [*_climbed(packed, [_SPLATS]), (LADDERS["rasterize"].rung("torch.tile"), _SPLATS)]
    yield _climbed(packed, [*_steps(), SAMPLE])
    for cache in ("f32", "f16", "bf16"):
        yield _climbed(packed, _attention(cache))
    for name in _NAMES:
        cases = [case for dtype in dtypes + ("f16",) * (name in _HALF) for case in _products(name, dtype)]
        rows = [Case("embedding", name, dtype, (1, 64, 512)) for dtype in dtypes if name in _ROWS]
        whole = _climbed(packed, cases + rows) + _climbed(packed, rows, apart=True)
        yield whole + (_climbed(unpacked, cases) if name in _UNPACKED else [])


def prove() -> None:
    """Fills the cache of ``RUNG_CACHE`` where something is lacking; a second or less where nothing is."""
    cpu = next(device for device in planning.proven_devices(lambda device: None) if device.kind == "cpu")
    lists = list(_proofs(cpu))
    halves = [[(rung, case) for each in lists[start::2] for rung, case in each if rung] for start in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda half: self_check.prove(cpu, half), halves))
