"""Machine code of the kernels in CUDA C for 12 architectures, without a card: instructions, registers, spills, time.

    python benchmarks/cuda.py --nvrtc LIBNVRTC [--tools FOLDER] [--formats q4_0,nf4:64,...] [--architectures 61,90]
    python benchmarks/cuda.py --nvrtc LIBNVRTC --blocks [...]   # types of GGUF in the blocks of a file, as layers do
    python benchmarks/cuda.py --nvrtc LIBNVRTC --seconds [...]  # time to compile alone, of all formats both ways
    python benchmarks/cuda.py --hiprtc LIBHIPRTC [...]          # registers and spills of AMD's, for HIP_ARCHITECTURES

NVRTC compiles each product of 1, 2, 4 and 8 rows of f16, the decoder, and the kernels of whole tokens (``store``,
``gate``) of a format (``libnvrtc.so.12`` of
``nvidia-cuda-nvrtc-cu12`` 12.9 knows all architectures, 13 those from 7.5 on). ``cuobjdump`` (in ``--tools``, in
Triton's wheel, or on the path; 12.x disassembles them all) tells registers, and the instructions of the loop over
columns by the weights that a pass of it multiplies.

The bars: a format on 12 architectures, one row, in 5 s of a processor; no spill; q4_0 at most 1.3 instructions a weight
at an occupancy of 50 % from 6.1 on, 3 at 35 % below; nf4 and fp4 at most 4.5. hipRTC (``libhiprtc.so``,
``libamdhip64.so.5`` of ROCm 5) compiles the same sources, attention and norms of whole tokens too; what it makes tells
registers and spills itself. Ends with 1 where one is missed. Nothing of this says how fast a card is.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from rung import formats
from rung.kernels.cuda import compiler
from rung.kernels.cuda.attention_source import attention
from rung.kernels.cuda.block_readers import BLOCKS
from rung.kernels.cuda.draw_source import choosing, embedding
from rung.kernels.cuda.readers import STORED, Layout, stored
from rung.kernels.cuda.source import (
    COUNTS,
    THREADS,
    Source,
    byte_product,
    bytes_of_rows,
    counts,
    decoding,
    product,
    tile_of,
)
from rung.kernels.cuda.step_source import downs, gated, norms, sums
from rung.kernels.gpu import cuda_products as products
from rung.kernels.webgpu.layouts import UNIT
from rung.ops.proof import columns_of, weights

#: Threads and blocks that a multiprocessor holds, and its shared memory in bytes (CUDA programming guide, 5.5 of its
#: tables of technical specifications), by ten times the compute capability.
LIMITS = {
    50: (2048, 32, 65536),
    52: (2048, 32, 98304),
    60: (2048, 32, 65536),
    61: (2048, 32, 98304),
    70: (2048, 32, 98304),
    75: (1024, 16, 65536),
    80: (2048, 32, 167936),
    86: (1536, 16, 102400),
    89: (1536, 24, 102400),
    90: (2048, 32, 233472),
    100: (2048, 32, 233472),
    120: (1536, 24, 102400),
}
REGISTERS, GRANULE = 65536, 256
#: Vega 10 and 20, CDNA2, RDNA2. The hipRTC of ROCm 5 crashes on architectures that it does not know.
HIP_ARCHITECTURES = ("gfx900", "gfx906", "gfx90a", "gfx1030")
FORMATS = (
    "q4_0",
    "q8_0",
    "q4_k",
    "q6_k",
    "nf4:64",
    "nf4:64:nested",
    "fp4:64",
    "int8",
    "q4_1",
    "q5_1",
    "q2_k",
    "iq4_nl",
)
SECONDS = 5.0


@dataclass(frozen=True)
class Code:
    """Figures of one compiled kernel."""

    registers: int
    shared: int
    spills: int
    instructions: float
    most: tuple[tuple[str, int], ...]

    def occupancy(self, arch: int) -> float:
        """Return the share of a multiprocessor's threads that registers, blocks and shared memory leave."""
        threads, blocks, shared = LIMITS[arch]
        each = -(-self.registers * 32 // GRANULE) * GRANULE * THREADS // 32
        fit = min(threads // THREADS, REGISTERS // each, blocks, shared // max(self.shared, 1))
        return fit * THREADS / threads


def layout_of(name: str, blocks: bool) -> Layout:
    """Return the layout of a format, of the scales of a Gaussian weight; with ``blocks`` that of a file."""
    format = formats.get(name)
    if blocks or name.split(":")[0] in STORED:
        return stored(format)
    return products.packed(weights(name, 16, columns_of(name)), torch.device("cpu")).layout


def read(cubin: bytes, kernel: str, weights_a_pass: int, tool: str) -> Code:
    """Return the figures of one kernel of a module, as ``cuobjdump`` prints it."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(rf"Function {kernel}:\s+REG:(\d+) STACK:\d+ SHARED:(\d+)", usage)
    assert found, usage
    text = next(part for part in re.split(r"Function : ", code)[1:] if part.split()[0] == kernel)
    pattern = r"/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)([^;\n]*)"
    lines = [(int(at, 16), op, rest) for at, op, rest in re.findall(pattern, text)]
    loop = loop_of(lines)
    names = collections.Counter(op.split(".")[0] for _, op, _ in loop)
    spills = sum(op.startswith(("LDL", "STL")) for _, op, _ in lines)
    return Code(int(found[1]), int(found[2]), spills, len(loop) / weights_a_pass, tuple(names.most_common(5)))


def loop_of(lines: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """Return the loop that loads most."""
    best: list[tuple[int, str, str]] = []
    for at, op, rest in lines:
        target = re.search(r"0x([0-9a-f]+)", rest)
        if op.startswith("BRA") and target and int(target[1], 16) < at:
            part = [line for line in lines if int(target[1], 16) <= line[0] <= at]
            best = max(best, part, key=lambda each: sum(op.startswith("LDG") for _, op, _ in each))
    return best


def missed(name: str, arch: int, count: int, code: Code) -> str:
    """Return which bar the kernel misses; of blocks of files it is that of spills."""
    family, old = name.split(":")[0], arch < 61
    most = {"q4_0": 3.0 if old else 1.3, "nf4": 4.5, "fp4": 4.5}.get(family)
    if code.spills:
        return "spills"
    if count > 1:
        return ""
    if most is not None and code.instructions > most:
        return f"more than {most} instructions a weight"
    least = 0.35 if old else 0.5
    return "occupancy" if family == "q4_0" and code.occupancy(arch) < least else ""


def measure(name: str, layout: Layout, library: compiler.Compiler, architectures: list[int], tool: str) -> int:
    """Print the kernels of a format; return how many bars are missed."""
    family, misses, seconds = "" if layout.blocks else name, 0, 0.0
    for arch in architectures:
        row = f"{name:14s} {arch / 10:4.1f}"
        for count in counts(layout):
            start = time.process_time()
            cubin = library.compile_now(product(layout, "f16", count), f"sm_{arch}")
            seconds += (time.process_time() - start) * (count == 1)
            code = read(cubin, "multiply", UNIT * tile_of(count), tool)
            wrong = missed(family, arch, count, code)
            misses += bool(wrong)
            row += f" | x{count} {code.instructions:5.2f} r{code.registers} {code.occupancy(arch):4.0%} {wrong}"
        spills = read(library.compile_now(decoding(layout, "f16"), f"sm_{arch}"), "decode", UNIT, tool).spills
        row, missed_too = row + (" | decode spills" if spills else ""), bool(spills)
        for kernel, code in in_tokens(layout, library, arch, tool):
            wrong = missed(family, arch, 1, code)
            missed_too += bool(wrong)
            row += f" | {kernel} {code.instructions:5.2f} r{code.registers} {code.occupancy(arch):4.0%} {wrong}"
        misses += missed_too
        print(row, flush=True)
    return misses + is_late(name, len(architectures), seconds)


def is_late(name: str, count: int, seconds: float) -> bool:
    """Print how long products of a format took to compile; return whether that is longer than the bar."""
    late = seconds > SECONDS
    print(f"{name}: {count} architectures in {seconds:.1f} s (bar: {SECONDS:.0f}){' missed' * late}", flush=True)
    return late


def time_all(names: list[str], library: compiler.Compiler, architectures: list[int]) -> int:
    """Print how long products of one row take to compile, of formats as they are packed and as files store them; return
    how many are late."""
    late = 0
    for name in names:
        for blocks in (False, True)[name not in FORMATS : 1 + (name in BLOCKS)]:
            source, start = product(layout_of(name, blocks), "f16", 1), time.process_time()
            for arch in architectures:
                library.compile_now(source, f"sm_{arch}")
            said = f"{name} in blocks" if blocks else name
            late += is_late(said, len(architectures), time.process_time() - start)
    return late


def in_tokens(layout: Layout, library: compiler.Compiler, arch: int, tool: str) -> Iterator[tuple[str, Code]]:
    """Yield the kernels of ``cuda.step`` that multiply with a weight, with adapters too, and what they became."""
    for changed in (False, True):
        for source, kernel in (
            (sums([layout], changed=changed), "store"),
            (gated([layout, layout], "silu", changed=changed), "gate"),
        ):
            cubin = library.compile_now(source, f"sm_{arch}")
            yield f"changed {kernel}" * changed or kernel, read(cubin, kernel, UNIT * tile_of(1), tool)


def measure_choices(library: compiler.Compiler, architectures: list[int], tool: str) -> int:
    """Print the registers of the kernels that choose tokens and multiply with adapters; return how many spill."""
    spills = 0
    for arch in architectures:
        row = f"choices        {arch / 10:4.1f}"
        for source in (choosing(), downs(), embedding(layout_of("q6_k", False))):
            cubin = library.compile_now(source, f"sm_{arch}")
            for kernel in source.kernels:
                code = read(cubin, kernel, 1, tool)
                spills += bool(code.spills)
                row += f" | {kernel} r{code.registers}" + " spills" * bool(code.spills)
        print(row, flush=True)
    return spills


def measure_bytes(library: compiler.Compiler, architectures: list[int], tool: str) -> int:
    """Print the kernels under bitsandbytes' int8 operators: 16 columns a load; return how many spill."""
    spills = 0
    for arch in architectures:
        rows = read(library.compile_now(bytes_of_rows("f16"), f"sm_{arch}"), "quantize_rows", 1, tool)
        row, spills = f"bitsandbytes   {arch / 10:4.1f} | rows r{rows.registers}", spills + bool(rows.spills)
        for count in COUNTS:
            cubin = library.compile_now(byte_product("f16", count), f"sm_{arch}")
            code = read(cubin, "multiply_bytes", 16 * tile_of(count), tool)
            spills += bool(code.spills)
            row += f" | x{count} {code.instructions:5.2f} r{code.registers} {code.occupancy(arch):4.0%}"
        print(row, flush=True)
    return spills


def sources_of(layout: Layout) -> Iterator[tuple[str, Source]]:
    """Yield all kernels that read a layout."""
    yield from ((f"x{count}", product(layout, "f16", count)) for count in counts(layout))
    yield "decode", decoding(layout, "f16")
    yield "store", sums([layout])
    yield "gate", gated([layout, layout], "silu")
    yield "changed", sums([layout], changed=True)
    yield "embed", embedding(layout)


def in_metadata(image: bytes, key: bytes) -> list[int]:
    """Return the numbers that a code object has under a key, one a kernel (MessagePack, of up to 32 bits)."""
    found = []
    for each in re.finditer(re.escape(key), image):
        first, behind = image[each.end()], image[each.end() + 1 :]
        found.append(first if first < 128 else int.from_bytes(behind[: {0xCC: 1, 0xCD: 2, 0xCE: 4}[first]], "big"))
    return found


def measure_hip(library: compiler.Compiler, architectures: list[str], names: list[str], blocks: bool) -> int:
    """Print the registers of kernels as hipRTC compiles them; return how many sources spill."""
    spills = 0
    for arch in architectures:
        whole = [
            ("norms", norms()),
            ("choice", choosing()),
            ("down", downs()),
            ("rows", bytes_of_rows("f16")),
            ("bytes x8", byte_product("f16", 8)),
        ]
        whole += [(f"attend {dtype}", attention(64, False, dtype)) for dtype in ("f32", "f16", "q8_0")]
        kinds = {"tokens": whole} | {name: list(sources_of(layout_of(name, blocks))) for name in names}
        for kind, sources in kinds.items():
            row = f"{kind:14s} {arch:8s}"
            for name, source in sources:
                image = library.compile_now(source, arch)
                spilled = sum(sum(in_metadata(image, key)) for key in (b".vgpr_spill_count", b".sgpr_spill_count"))
                spills += bool(spilled)
                row += f" | {name} r{max(in_metadata(image, b'.vgpr_count'))}" + " spills" * bool(spilled)
            print(row, flush=True)
    print(f"sources that spill: {spills}")
    return spills


def tool_in(folder: str | None) -> str:
    """Return the path of ``cuobjdump``."""
    spec = importlib.util.find_spec("triton")
    bundled = Path(spec.origin).parent / "backends/nvidia/bin" if spec and spec.origin else None
    found = shutil.which("cuobjdump", path=folder) or shutil.which("cuobjdump")
    return found or shutil.which("cuobjdump", path=str(bundled)) or "cuobjdump"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvrtc", type=Path)
    parser.add_argument("--hiprtc", type=Path)
    parser.add_argument("--tools")
    parser.add_argument("--blocks", action="store_true", help="read types of GGUF as files store them")
    parser.add_argument("--seconds", action="store_true", help="measure the time to compile alone")
    parser.add_argument("--formats", help="default: twelve, with --blocks all, with --seconds both")
    parser.add_argument("--architectures")
    options = parser.parse_args()
    names = options.formats.split(",") if options.formats else list(BLOCKS if options.blocks else FORMATS)
    named = options.architectures.split(",") if options.architectures else []
    if options.hiprtc:
        amd = compiler.load(options.hiprtc, "hiprtc")
        return int(measure_hip(amd, named or list(HIP_ARCHITECTURES), names, options.blocks) > 0)
    if not options.nvrtc:
        parser.error("--nvrtc or --hiprtc")
    library = compiler.load(options.nvrtc, "nvrtc")
    architectures = [each for each in map(int, named or LIMITS) if each in library.architectures]
    if options.seconds:
        every = names if options.formats else [*dict.fromkeys((*FORMATS, *BLOCKS))]
        return int(time_all(every, library, architectures) > 0)
    print(f"NVRTC {library.version}, one row: instructions a weight, registers, occupancy")
    tool = tool_in(options.tools)
    misses = sum(measure(name, layout_of(name, options.blocks), library, architectures, tool) for name in names)
    if not options.formats:
        misses += measure_bytes(library, architectures, tool) + measure_choices(library, architectures, tool)
    print(f"bars missed: {misses}")
    return int(misses > 0)


if __name__ == "__main__":
    raise SystemExit(main())
