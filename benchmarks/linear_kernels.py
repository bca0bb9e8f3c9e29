"""Packed linear kernels beside this machine's limits: bandwidth for one row of activations, int8 rate for many.

    python benchmarks/linear_kernels.py [--format q4_0 q4_k] [--shape 4096x4096] [--rows 1 8 256] [--threads 2]
    python benchmarks/linear_kernels.py --alone [--format q4_0 q8_0] [--rows 2 4 8 12]

Prints, for each format, shape and number of rows, the best of several runs in microseconds, GB/s of packed weights,
int8 GOP/s, and both as shares of what was measured here: a read of 256 MB, and products of registers. Weights are
cold: runs cycle through copies of 128 MB in all. Times include quantizing the activations. `language_model.py`
measures whole models beside llama.cpp. ``--alone`` times the kernel of a tile of so many rows on one thread, without
quantizing and the call: microseconds for 2048 x 2048 weights from the second cache and from memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.gemm.microkernel import panel_unit_bytes
from rung.kernels.cpu.gemm.product import multiply, product, quantize
from rung.kernels.cpu.pack import packing
from rung.kernels.cpu.pack.layouts import UNIT
from rung.kernels.cpu.pack.packing import Packed, pack
from rung.kernels.cpu.thread_pool import run
from rung.kernels.isa.products import Codes, Sum
from rung.kernels.isa.registers import broadcast_i32, i32x16, load_i32, sum_i32, zero_i32
from rung.kernels.isa.scalar import read_i64, write_u32
from rung.kernels.isa.vector import instruction

COLD = 128 << 20


@instruction(i32x16, i32x16, i32x16, i32x16)
def dot_u8_i8(b, total, unsigned, signed):
    """Four products of bytes in each lane, added to int32 with the instructions of the level."""
    added = Sum(b, total, 127)
    added.add(Codes(b, unsigned, bytewide=False), signed)
    return added.total()


@kernel(3)
def _read(words, thread, threads):
    """Sums a share of [address, bytes, results] of memory."""
    share = read_i64(words + 16) // threads
    start = read_i64(words + 8) + share * thread
    a = b = c = d = zero_i32()
    for at in range(start, start + share, 256):
        a, b = dot_u8_i8(a, load_i32(at), load_i32(at)), dot_u8_i8(b, load_i32(at + 64), load_i32(at + 64))
        c, d = (
            dot_u8_i8(c, load_i32(at + 128), load_i32(at + 128)),
            dot_u8_i8(d, load_i32(at + 192), load_i32(at + 192)),
        )
    write_u32(read_i64(words + 24) + 64 * thread, sum_i32(a) + sum_i32(b) + sum_i32(c) + sum_i32(d))


@kernel(3)
def _multiply(words, thread, threads):
    """[address, turns, results]: twelve chains of products of registers."""
    source = read_i64(words + 8)
    x, y = load_i32(source), load_i32(source + 64)
    a, b, c, d = broadcast_i32(source), broadcast_i32(source + 4), broadcast_i32(source + 8), broadcast_i32(source + 12)
    e, f, g, h = broadcast_i32(source + 16), broadcast_i32(source + 20), broadcast_i32(source + 24), zero_i32()
    i, j, k, m = broadcast_i32(source + 28), broadcast_i32(source + 32), broadcast_i32(source + 36), load_i32(source)
    for _ in range(read_i64(words + 16)):
        a, b, c, d = dot_u8_i8(a, x, y), dot_u8_i8(b, x, y), dot_u8_i8(c, x, y), dot_u8_i8(d, x, y)
        e, f, g, h = dot_u8_i8(e, x, y), dot_u8_i8(f, x, y), dot_u8_i8(g, x, y), dot_u8_i8(h, x, y)
        i, j, k, m = dot_u8_i8(i, x, y), dot_u8_i8(j, x, y), dot_u8_i8(k, x, y), dot_u8_i8(m, x, y)
    result = sum_i32(a) + sum_i32(b) + sum_i32(c) + sum_i32(d) + sum_i32(e) + sum_i32(f)
    result += sum_i32(g) + sum_i32(h) + sum_i32(i) + sum_i32(j) + sum_i32(k) + sum_i32(m)
    write_u32(read_i64(words + 24) + 64 * thread, result)


def best(call: Callable[[], None], seconds: float) -> float:
    """The shortest of the calls that fit into that time, at least three."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def limits(threads: int) -> tuple[float, float]:
    """Bytes read and int8 operations per second."""
    memory, results = packing.empty(256 << 20), np.zeros(16 * threads, np.int32)
    memory[:] = 1
    turns = 100_000

    def call(function: int, count: int) -> Callable[[], None]:
        return lambda: run(function, np.array([0, memory.ctypes.data, count, results.ctypes.data], np.int64), threads)

    read = best(call(_read.address, len(memory)), 1.0)
    multiply = best(call(_multiply.address, turns), 0.5)
    return len(memory) / read, threads * turns * 12 * 64 * 2 / multiply


def weights(name: str, rows: int, columns: int, threads: int) -> list[Packed]:
    """Copies of a packed weight, so many that they do not fit into a cache."""
    format = formats.get(name)
    few = formats.encode(np.random.default_rng(1).standard_normal((16, columns), dtype=np.float32), format)
    parts = {key: np.tile(part, (rows // 16, 1) if part.ndim == 2 else rows // 16) for key, part in few.parts.items()}
    first = pack(Encoded(format, (rows, columns), parts), threads)
    return [first, *(pack(Encoded(format, (rows, columns), parts), threads) for _ in range(COLD // first.nbytes))]


def alone(name: str, tile: int, rows: int, columns: int = 2048) -> float:
    """Return the seconds that the kernel takes for each weight of [rows, columns], with a tile of activations."""
    (weight, *_) = weights(name, rows, columns, 1)
    x, y = (
        np.random.default_rng(2).standard_normal((tile, columns), dtype=np.float32),
        np.empty((tile, rows), np.float32),
    )
    offset, parts = weight.layout.activations
    panel = packing.empty(panel_unit_bytes(tile, parts) * columns // UNIT)
    quantize("f32").call(
        x.ctypes.data, x.strides[0], tile, panel.ctypes.data, tile, parts, offset, 0, columns // UNIT, 0
    )
    layout, kernel = weight.layout, multiply(weight.layout.name, tile)
    first = (weight.pointer, weight.table_pointer, panel.ctypes.data, y.ctypes.data, y.strides[0], tile, rows, 0)
    blocks = (0, columns // layout.block, layout.row_header, layout.block_bytes)
    unit = layout.block // UNIT * panel_unit_bytes(tile, parts)
    return best(lambda: kernel.call(*first, weight.groups, weight.group_bytes, *blocks, unit, 0), 0.6) / (
        rows * columns
    )


def print_alone(names: list[str], tiles: list[int]) -> None:
    """Print what kernels take alone."""
    bandwidth, rate = limits(1)
    print(f"limits of a thread: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GOP/s (int8)")
    print("format  rows   us from cache   from memory   of int8 products")
    for name in names:
        for tile in tiles:
            cached, cold = (alone(name, tile, rows) * 2048 * 2048 * 1e6 for rows in (256, 65536))
            print(
                f"{name:7} {tile:4} {cached:15.0f} {cold:13.0f} {2 * tile * 2048 * 2048 / rate * 1e6:18.0f}", flush=True
            )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", nargs="+", default=["q4_0", "q4_k", "q6_k", "q8_0", "int8", "nf4"])
    parser.add_argument("--shape", nargs="+", default=["4096x4096", "2048x2048"], help="OUTxIN, OUT a multiple of 16")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 256])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="time kernels alone, on one thread")
    chosen = parser.parse_args()
    if chosen.alone:
        print_alone(chosen.format, chosen.rows)
        return
    bandwidth, rate = limits(chosen.threads)
    print(f"limits with {chosen.threads} threads: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GOP/s (int8)")
    print("format  shape       rows        us    GB/s         GOP/s")
    for name in chosen.format:
        for shape in chosen.shape:
            out, columns = map(int, shape.split("x"))
            copies = weights(name, out, columns, chosen.threads)
            for rows in chosen.rows:
                x, y = (
                    np.random.default_rng(2).standard_normal((rows, columns), dtype=np.float32),
                    np.empty((rows, out), np.float32),
                )
                turn = iter(range(1 << 60))

                def call(copies: list[Packed] = copies, x: np.ndarray = x, y: np.ndarray = y) -> None:
                    weight = copies[next(turn) % len(copies)]  # noqa: B023 - called before the next turn
                    product(weight, x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.ctypes.data, "f32")

                seconds = best(call, 0.7)
                read, done = copies[0].nbytes / seconds, 2 * rows * out * columns / seconds
                print(
                    f"{name:7} {shape:11} {rows:4} {seconds * 1e6:9.0f} {read / 1e9:7.1f} {read / bandwidth:4.0%}"
                    f" {done / 1e9:7.0f} {done / rate:4.0%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
