"""What tests of kernels have in common, compiled and proved before they start.

Each test would do it for its own formats: a child process that imports torch for every weight, and processes that run
at once would compile the same kernels. Here it is one child for each core.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from rung import formats
from rung.core.types import Case
from rung.core.value import FrozenDict
from rung.engine import system
from rung.kernels.cpu.layouts import FORMATS
from rung.ops.linear import IN_PLACE
from rung.run.bind import Binder
from rung.run.journal import Journal

_OTHERS = ("nf4:64:nested", "fp4:128:nested", "u4:32", "u4:32:ordered", "e4m3:64:bf16", "e4m3:128:bf16")
_NAMES = (*(formats.get(name).name for name in FORMATS if name not in ("u2", "u4", "u8")), *IN_PLACE, *_OTHERS)
#: Formats of tiny models' embeddings.
_ROWS = ("q8_0", "q6_k", "q4_1", "q5_0", "q5_k", "int8", "nf4:64", *IN_PLACE)
_HALF = (("nf4:64", "f16"), ("q8_0", "f16"), ("nf4:64", "bf16"), ("q4_0", "bf16"))
_SPLATS = FrozenDict({"degree": 3, "antialiased": False})


def _products(name: str, dtype: str = "f32") -> Iterator[Case]:
    for rows in (1, 256):
        yield Case("linear", name, dtype, (rows, 64, 512))


def _others() -> Iterator[Case]:
    for cache in ("f32", "f16"):
        for queries in (1, 256):
            yield Case("attention", cache, "f32", (queries, 256, 8, 4, 64))
    for linear, cache in (("numba.stored", "f32"), ("numba.stored", "f16"), ("numba.row", "f16")):
        options = {"linears": (linear,), "head_dim": 64, "devices": 1, "adapters": False}
        yield Case("decode_step", cache, "f32", (2, 512, 1024, 1000), FrozenDict(options))
    for name, dtype in _HALF:
        yield from _products(name, dtype)
    yield Case("rasterize", "f32", "f32", (256, 256, 256), _SPLATS)


def prove() -> None:
    """Fills the cache of ``RUNG_CACHE`` where something is lacking; a second or less where nothing is."""
    cpu = next(device for device in system.proven_devices(lambda device: None) if device.kind == "cpu")
    rows = [Case("embedding", name, "f32", (1, 64, 512)) for name in _ROWS]
    first, second = ([case for name in _NAMES[start::2] for case in _products(name)] for start in (0, 1))
    with ThreadPoolExecutor(2) as threads:
        binder = Binder(cpu, Journal())
        done = [threads.submit(binder.prove, cases) for cases in (first + rows, [*second, *_others()])]
        done.append(threads.submit(binder.prove, rows, apart=True))
        for each in done:
            each.result()
