"""Count the instructions of inner loops on ARM processors beside llama.cpp's kernels for the same processors.

    python benchmarks/arm_instructions.py LLAMA_CPP    # its sources: vendor/llama.cpp in the sdist of llama-cpp-python
    python benchmarks/arm_instructions.py LLAMA_CPP --core apple-m1 --format q4_1 f16 --table

Nothing is run. rung's loops are compiled for each processor by the compiler of its kernels (``instructions.py``), those
of llama.cpp by Debian's ``g++-aarch64-linux-gnu``: the packed kernels that it chooses there (``repack.cpp``), or its
products of two rows where it has none (``quants.c``; of floats ``vec.cpp``, for one row alone). Both count the loop
that multiplies, and its head in a block of weights, with the loops in the head once. Such a loop that has more turns,
and calls of functions, count less than they take. ``--table`` prints rung over llama.cpp for one row, and for many.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from instructions import FLOATS, PRODUCTS, count_floats, count_layout, initialize
from rung import formats
from rung.kernels.cpu.pack.layouts import LAYOUTS, layout_of
from rung.kernels.isa import levels

_TOOLS = "aarch64-linux-gnu-"
_PREDEFINED = ("-O3", "-DNDEBUG", "-D_GNU_SOURCE", "-DGGML_USE_CPU_REPACK")
_SOURCES = ("arch/arm/quants.c", "arch/arm/repack.cpp", "vec.cpp")
#: Rows of activations of a packed kernel for many.
_ROWS = 4


@dataclass(frozen=True)
class Peer:
    """A format of llama.cpp: its name there, what it quantizes activations to, and the columns of a block.

    ``packed``: the columns of a row that it packs together where bytes have products, "core" for the processor's own
    number, "" for none. ``products``: those that it makes of a weight.
    """

    name: str
    activations: str
    columns: int = 256
    packed: str = ""
    products: int = 1


FORMATS = {
    "q4_0": Peer("q4_0", "q8_0", 32, "core"),
    "q4_1": Peer("q4_1", "q8_1", 32),
    "q5_0": Peer("q5_0", "q8_0", 32),
    "q5_1": Peer("q5_1", "q8_1", 32),
    "q8_0": Peer("q8_0", "q8_0", 32, "core"),
    "q2_k": Peer("q2_K", "q8_K"),
    "q3_k": Peer("q3_K", "q8_K"),
    "q4_k": Peer("q4_K", "q8_K", 256, "core"),
    "q5_k": Peer("q5_K", "q8_K", 256, "core"),
    "q6_k": Peer("q6_K", "q8_K", 256, "core"),
    "iq4_nl": Peer("iq4_nl", "q8_0", 32, "4"),
    "iq4_xs": Peer("iq4_xs", "q8_K"),
    "mxfp4": Peer("mxfp4", "q8_0", 32, "4"),
    "nvfp4": Peer("nvfp4", "q8_0", 64),
    "iq3_s": Peer("iq3_s", "q8_K"),
    "iq3_xxs": Peer("iq3_xxs", "q8_K"),
    "iq2_s": Peer("iq2_s", "q8_K"),
    "iq2_xs": Peer("iq2_xs", "q8_K"),
    "iq2_xxs": Peer("iq2_xxs", "q8_K"),
    "iq1_m": Peer("iq1_m", "q8_K", products=2),
    "iq1_s": Peer("iq1_s", "q8_K"),
    "tq2_0": Peer("tq2_0", "q8_K"),
    "tq1_0": Peer("tq1_0", "q8_K"),
    "f32": Peer("f32", ""),
    "f16": Peer("f16", ""),
    "bf16": Peer("bf16", ""),
}


@dataclass(frozen=True)
class Core:
    """A processor: rung's level, GCC's options for it (without SVE, which not all of its level have), and the columns
    of a row that llama.cpp packs together there; 0 for none."""

    level: str
    gcc: str
    packed: int


#: GCC 12 does not know the M1: ARMv8.4 with float16 is all that it has of what kernels use.
CORES = {
    "cortex-a72": Core("neon", "-mcpu=cortex-a72", 0),
    "cortex-a76": Core("neon_dotprod", "-mcpu=cortex-a76", 4),
    "apple-m1": Core("neon_dotprod", "-march=armv8.4-a+fp16", 4),
    "neoverse-v1": Core("neon_i8mm", "-mcpu=neoverse-v1+nosve", 8),
    "neoverse-n2": Core("neon_i8mm", "-mcpu=neoverse-n2+nosve", 8),
}


@dataclass(frozen=True)
class Loop:
    """A loop of a function: its first and last instruction, how many it has without the loops in it, how many products
    these make, and whether they multiply matrices."""

    first: int
    last: int
    own: int
    products: int
    matrices: bool

    def holds(self, other: Loop) -> bool:
        """Return whether the other loop lies in this one."""
        return self != other and self.first <= other.first and other.last <= self.last


def byte_products(instruction: str) -> int:
    """Products of bytes of an instruction."""
    if re.match(r"u?smmla\b", instruction):
        return 32
    if re.match(r"(u|s|us)dot\b", instruction):
        return 16
    return 8 if re.match(r"sml?[ua]ll?2?\s+v\d+\.8h", instruction) else 0


def float_products(instruction: str) -> int:
    """Products of floats of an instruction."""
    found = re.match(r"f(?:mla|mul|madd)\s+(?:v\d+\.([248])[sh]|s)", instruction)
    return int(found[1] or 1) if found else 0


def functions(core: Core, sources: Path) -> dict[str, list[tuple[int, str]]]:
    """Compile llama.cpp's kernels for a processor: addresses and instructions by function."""
    found: dict[str, list[tuple[int, str]]] = {}
    folder = sources / "ggml/src/ggml-cpu"
    include = [f"-I{path}" for path in (folder, folder.parent, folder.parents[1] / "include")]
    with tempfile.TemporaryDirectory() as temporary:
        for source in _SOURCES:
            code = Path(temporary, Path(source).stem).with_suffix(".o")
            command = [f"{_TOOLS}gcc", *_PREDEFINED, core.gcc, *include, "-c", "-o", str(code)]
            subprocess.run([*command, str(folder / source)], check=True, capture_output=True)
            listing = subprocess.run(
                [f"{_TOOLS}objdump", "-d", "--no-show-raw-insn", str(code)], check=True, capture_output=True, text=True
            )
            lines: list[tuple[int, str]] = []
            for line in listing.stdout.splitlines():
                if name := re.match(r"[0-9a-f]+ <(.+)>:", line):
                    lines = found.setdefault(name[1], [])
                elif instruction := re.match(r"\s+([0-9a-f]+):\s+(.*)", line):
                    lines.append((int(instruction[1], 16), instruction[2]))
    return found


def loops(lines: list[tuple[int, str]], products: Callable[[str], int] = byte_products) -> list[Loop]:
    """Return the loops of a function: ends are jumps back."""
    places = {address: index for index, (address, _) in enumerate(lines)}
    ends: dict[int, int] = {}
    for index, (_, text) in enumerate(lines):
        jump = re.match(r"(?:b|b\.\w+|cbn?z|tbn?z)\s(?:.*\s)?([0-9a-f]+) <", text)
        first = places.get(int(jump[1], 16), index + 1) if jump else index + 1
        if first <= index:
            ends[first] = max(index, ends.get(first, 0))
    found = []
    for first, last in ends.items():
        inner = [(a, b) for a, b in ends.items() if (a, b) != (first, last) and first <= a and b <= last]
        own = [lines[at][1] for at in range(first, last + 1) if not any(a <= at <= b for a, b in inner)]
        matrices = any("mmla" in text for text in own)
        found.append(Loop(first, last, len(own), sum(map(products, own)), matrices))
    return found


def count_function(every: list[Loop], block: int, over_rows: int) -> float:
    """Instructions a product of a function with these loops that makes ``block`` products between two heads;
    ``over_rows``: its outer loops, over rows, which are not counted."""
    main = max(every, key=lambda loop: loop.products)
    turns = max(1, block // main.products)
    turn = main.own + sum(loop.own for loop in every if main.holds(loop))
    around = sorted((loop for loop in every if loop.holds(main)), key=lambda loop: loop.last - loop.first)
    heads, head = around[: len(around) - over_rows] if turns > 1 else [], 0
    if heads:
        inside = [loop for loop in every if heads[-1].holds(loop)]
        head = heads[-1].own + sum(loop.own for loop in inside if loop != main and not main.holds(loop))
    return (turns * turn + head) / (turns * main.products)


def count_llama(core: Core, code: dict[str, list[tuple[int, str]]], format: str, many: bool) -> float:
    """Instructions a weight and row of llama.cpp's kernel for one row of activations, or for many."""
    peer = FORMATS[format]
    if not peer.activations:
        return count_function(loops(code[f"ggml_vec_dot_{format}"], float_products), 1, 0)
    if not core.packed or not peer.packed:
        every = loops(code[f"ggml_vec_dot_{peer.name}_{peer.activations}"])
        chosen = [loop for loop in every if many or not loop.matrices]
        return peer.products * count_function(chosen, peer.products * peer.columns, 0)
    together, packed = 4 if peer.columns == 32 else 8, core.packed if peer.packed == "core" else peer.packed
    function = f"ggml_{'gemm' if many else 'gemv'}_{peer.name}_{together}x{packed}_{peer.activations}"
    block = peer.columns * together * (_ROWS if many else 1)
    return count_function(loops(code[function]), block, 2 if many else 1)


@functools.cache
def _count_layout(cpu: str, layout: str, many: bool) -> float:
    level = levels.named(CORES[cpu].level)
    return count_layout(level, LAYOUTS[layout], *((level.tile, 1) if many else (1, 1)), cpu) / PRODUCTS


def count_rung(cpu: str, format: str, many: bool) -> float:
    """Instructions a weight and row of rung's kernel."""
    if format in FLOATS:
        return count_floats(levels.named(CORES[cpu].level), format, cpu)
    return _count_layout(cpu, layout_of(formats.get(format)).name, many)


def print_table(counts: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    """Print rung over llama.cpp: a row for each format, a column for each processor."""
    cores = list(dict.fromkeys(cpu for cpu, _ in counts))
    print(f"| | {' | '.join(cores)} |\n|{'---|' * (len(cores) + 1)}")
    for format in dict.fromkeys(format for _, format in counts):
        cells = (counts[cpu, format] for cpu in cores)
        print(
            f"| {format} | {' | '.join(', '.join(f'{ours / theirs:.2f}' for ours, theirs in cell) for cell in cells)} |"
        )


def main() -> None:
    """Print a row for each processor, format and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, metavar="LLAMA_CPP")
    parser.add_argument("--core", nargs="+", choices=CORES, default=list(CORES))
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--table", action="store_true", help="in Markdown, rung over llama.cpp")
    arguments = parser.parse_args()
    initialize()
    counts: dict[tuple[str, str], list[tuple[float, float]]] = {}
    if not arguments.table:
        print("core | level | format | rows | rung | llama.cpp | rung / llama.cpp")
    for cpu in arguments.core:
        core, code = CORES[cpu], functions(CORES[cpu], arguments.sources)
        for format in arguments.format:
            for many in (False,) if format in FLOATS else (False, True):
                ours, theirs = count_rung(cpu, format, many), count_llama(core, code, format, many)
                counts.setdefault((cpu, format), []).append((ours, theirs))
                if not arguments.table:
                    rows = "many" if many else "1"
                    print(f"{cpu} | {core.level} | {format} | {rows} | {ours:.4f} | {theirs:.4f} | {ours / theirs:.2f}")
    if arguments.table:
        print_table(counts)


if __name__ == "__main__":
    main()
