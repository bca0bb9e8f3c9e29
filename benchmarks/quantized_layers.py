"""NF4 linear layers beside bitsandbytes', in turns: rows of activations in bf16 or f32, and a step of training.

    python benchmarks/quantized_layers.py [--peer FOLDER] [--shape 4096x4096] [--rows 1 512] [--dtype bfloat16]
        [--copies 1] [--avx2]

FOLDER is where bitsandbytes is installed, when it is not beside rung. Both hold the same weights, and calls go through
so many copies of a layer that weights are cold. Prints the median of each in ms, the median of the ratios of
neighboring calls (above 1: rung is faster), and the SQNR of the output against float64. ``--copies 1`` calls one
layer again and again, whose weights then lie in the cache, where it has room for both. bitsandbytes runs its own best
path: layers in eval mode, no gradients. Of rung, ``eval`` may quantize activations to int8 and ``exact`` does not.
``--avx2`` holds both, torch and its libraries too, to what a processor with AVX2 has: bitsandbytes' wheel asks the
processor for AVX-512, and decodes with loops in C++ where there is none.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import rung
from rung import formats

_COLD = 96 << 20  # bytes of weights that calls cycle through

#: What holds rung, torch, oneDNN and MKL to AVX2 in a process that starts with it.
_AVX2 = {
    "RUNG_CPU_LEVEL": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}

Call = Callable[[int, Tensor], Tensor]


def hold_to_avx2() -> None:
    """Start this program again with ``_AVX2``, and there hide AVX-512 from bitsandbytes' library before it looks.

    The library asks what its compiler's start-up code read of the processor (``__cpu_model``, ``__cpu_features2``).
    """
    if any(os.environ.get(name) != value for name, value in _AVX2.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | _AVX2)
    found = importlib.util.find_spec("bitsandbytes")
    assert found is not None, "bitsandbytes is not installed: pip install bitsandbytes"
    assert found.origin is not None
    path = Path(found.origin).parent / "libbitsandbytes_cpu.so"
    library = ctypes.CDLL(str(path))
    symbols = subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True).stdout
    places = {name: int(at, 16) for at, _, name in (line.split() for line in symbols.splitlines() if line[0] != " ")}
    begin = ctypes.cast(library.has_avx512f_cpu, ctypes.c_void_p).value or 0
    for symbol, offset, bit in (("__cpu_model", 12, 15), ("__cpu_features2", 0, 4)):
        word = ctypes.c_uint32.from_address(begin - places["has_avx512f_cpu"] + places[symbol] + offset)
        word.value &= ~(1 << bit)
    assert not library.has_avx512f_cpu(), "bitsandbytes would use AVX-512"
    assert not library.has_avx512bf16_cpu(), "bitsandbytes would use AVX-512"


def layers(out: int, columns: int, count: int) -> tuple[list[nn.Module], list[nn.Module], Tensor]:
    """Copies of rung's layer, of the peer's, and the decoded weight float64 of both."""
    import bitsandbytes

    torch.manual_seed(0)
    plain = nn.Linear(columns, out, bias=False)
    first = rung.quantize(plain, "nf4")
    ours = [first, *(copy.deepcopy(first) for _ in range(count - 1))]
    theirs: list[nn.Module] = []
    for _ in range(count):
        layer = bitsandbytes.nn.Linear4bit(
            columns, out, bias=False, quant_type="nf4", compress_statistics=False, compute_dtype=None
        )
        layer.weight = bitsandbytes.nn.Params4bit(
            plain.weight.data.clone(), requires_grad=False, quant_type="nf4", compress_statistics=False
        )
        theirs.append(layer.to("cpu"))
    return ours, theirs, first.dequantize().weight.detach().double()


def forward(modules: list[nn.Module], training: bool) -> Call:
    """Forward calls without gradients; ``training`` chooses the exact path of rung's layers."""
    for layer in modules:
        layer.train(training)

    def call(turn: int, x: Tensor) -> Tensor:
        with torch.no_grad():
            return modules[turn % len(modules)].train(training)(x)

    return call


def step(modules: list[nn.Module]) -> Call:
    """Forward and backward to the input, as below an adapter."""

    def call(turn: int, x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        y = modules[turn % len(modules)].train()(leaf)
        y.backward(torch.ones_like(y))
        assert leaf.grad is not None
        return y.detach()

    return call


def compare(name: str, ours: Call, theirs: Call, x: Tensor, dense: Tensor, turns: int) -> None:
    """Prints a line: both in turns, each first as often as the other."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 3):
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            (ours, theirs)[which](turn, x)
            if turn >= 3:
                times[which].append(1000 * (time.perf_counter() - start))
    want = (x.double() @ dense.T).numpy()
    errors = [formats.sqnr(want, call(0, x).double().numpy()) for call in (ours, theirs)]
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    medians = [statistics.median(each) for each in times]
    print(
        f"{len(x):5} {name:8} {medians[0]:9.3f} {medians[1]:9.3f} {ratio:7.2f}x {errors[0]:6.1f} {errors[1]:6.1f}",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="folder with bitsandbytes")
    parser.add_argument("--shape", default="4096x4096", help="OUTxIN")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 512])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument(
        "--copies", type=int, help="layers that calls cycle through; by default so many that weights are cold"
    )
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--avx2", action="store_true", help="hold both to AVX2")
    chosen = parser.parse_args()
    if chosen.peer:
        sys.path.append(chosen.peer)
    if chosen.avx2:
        hold_to_avx2()
    torch.set_num_threads(chosen.threads)
    out, columns = map(int, chosen.shape.split("x"))
    count = chosen.copies or max(2, _COLD // (out * columns // 2))
    ours, theirs, dense = layers(out, columns, count)
    limit = f", held to {torch.backends.cpu.get_cpu_capability()}" if chosen.avx2 else ""
    print(f"nf4 {chosen.shape}, {chosen.dtype}, {chosen.threads} threads, {count} copies{limit}")
    print("rows  rung      rung ms  bnb ms     ratio  rung dB  bnb dB")
    for rows in chosen.rows:
        x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, chosen.dtype))
        turns = chosen.turns if rows > 64 else 20 * chosen.turns
        compare("eval", forward(ours, False), forward(theirs, False), x, dense, turns)
        if rows > 64:
            compare("exact", forward(ours, True), forward(theirs, False), x, dense, turns)
            own, fresh, _ = layers(
                out, columns, count
            )  # once evaluated, the peer's layers have no gradient on some CPUs
            compare("step", step(own), step(fresh), x, dense, max(5, turns // 3))


if __name__ == "__main__":
    main()
