"""Count the instructions of inner loops on ARM processors beside llama.cpp's kernels for the same processors.

    python benchmarks/arm_instructions.py LLAMA_CPP    # its sources: vendor/llama.cpp in the sdist of llama-cpp-python

Nothing is run. rung's loops are compiled for each processor by the compiler of its kernels (``instructions.py``), those
of llama.cpp by Debian's ``g++-aarch64-linux-gnu``: the packed kernels that it chooses there (``repack.cpp``), or its
products of two rows where it has none. Both count the loop that multiplies bytes, and its head in a block of weights.
A loop of llama.cpp between these two counts once a block, one within that unpacks scales once a turn: it takes more
than is printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from instructions import PRODUCTS, count_layout, initialize
from rung.kernels.cpu.pack.layouts import LAYOUTS
from rung.kernels.isa import levels

_TOOLS = "aarch64-linux-gnu-"
_PREDEFINED = ("-O3", "-DNDEBUG", "-D_GNU_SOURCE", "-DGGML_USE_CPU_REPACK")
#: Formats as llama.cpp writes them, with what it quantizes activations to, and the columns of a block.
FORMATS = {
    "q4_0": ("q4_0", "q8_0", 32),
    "q8_0": ("q8_0", "q8_0", 32),
    "q4_k": ("q4_K", "q8_K", 256),
    "q5_k": ("q5_K", "q8_K", 256),
    "q6_k": ("q6_K", "q8_K", 256),
}
#: Rows of activations of a packed kernel for many.
_ROWS = 4


@dataclass(frozen=True)
class Core:
    """A processor: rung's level, GCC's name for it (without SVE, which not all of its level have), and the columns of a
    row that llama.cpp packs together there; 0 for none."""

    level: str
    gcc: str
    packed: int


CORES = {
    "cortex-a72": Core("neon", "cortex-a72", 0),
    "cortex-a76": Core("neon_dotprod", "cortex-a76", 4),
    "neoverse-n2": Core("neon_i8mm", "neoverse-n2+nosve", 8),
}


@dataclass(frozen=True)
class Loop:
    """A loop of a function: its first and last instruction, how many it has without the loops in it, and how many
    products of bytes these make."""

    first: int
    last: int
    own: int
    products: int

    def holds(self, other: Loop) -> bool:
        """Return whether the other loop lies in this one."""
        return self != other and self.first <= other.first and other.last <= self.last


def products(instruction: str) -> int:
    """Products of bytes of an instruction."""
    if re.match(r"u?smmla\b", instruction):
        return 32
    if re.match(r"(u|s|us)dot\b", instruction):
        return 16
    return 8 if re.match(r"sml?[ua]ll?2?\s+v\d+\.8h", instruction) else 0


def functions(core: Core, sources: Path) -> dict[str, list[tuple[int, str]]]:
    """Compile llama.cpp's kernels for a processor: addresses and instructions by function."""
    found: dict[str, list[tuple[int, str]]] = {}
    folder = sources / "ggml/src/ggml-cpu"
    with tempfile.TemporaryDirectory() as temporary:
        for source in ("quants.c", "repack.cpp"):
            code = Path(temporary, source).with_suffix(".o")
            include = [f"-I{path}" for path in (folder, folder.parent, folder.parents[1] / "include")]
            command = [f"{_TOOLS}gcc", *_PREDEFINED, f"-mcpu={core.gcc}", *include, "-c", "-o", str(code)]
            subprocess.run([*command, str(folder / "arch/arm" / source)], check=True, capture_output=True)
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


def loops(lines: list[tuple[int, str]]) -> list[Loop]:
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
        own = [at for at in range(first, last + 1) if not any(a <= at <= b for a, b in inner)]
        found.append(Loop(first, last, len(own), sum(products(lines[at][1]) for at in own)))
    return found


def count_function(lines: list[tuple[int, str]], block: int, over_rows: int) -> float:
    """Instructions a product of a function that makes ``block`` products between two heads; ``over_rows``: its outer
    loops, over rows, which are not counted."""
    every = loops(lines)
    main = max(every, key=lambda loop: loop.products)
    turns = max(1, block // main.products)
    around = sorted((loop for loop in every if loop.holds(main)), key=lambda loop: loop.last - loop.first)
    heads = around[: len(around) - over_rows] if turns > 1 else []
    turn = main.own + sum(loop.own for loop in every if main.holds(loop))
    return (turns * turn + sum(loop.own for loop in heads)) / (turns * main.products)


def count_llama(core: Core, code: dict[str, list[tuple[int, str]]], format: str, many: bool) -> float:
    """Instructions a product of llama.cpp's kernel for one row of activations, or for many."""
    name, activations, columns = FORMATS[format]
    if not core.packed:
        return count_function(code[f"ggml_vec_dot_{name}_{activations}"], columns, 0)
    together = 4 if columns == 32 else 8
    function = f"ggml_{'gemm' if many else 'gemv'}_{name}_{together}x{core.packed}_{activations}"
    block = columns * together * (_ROWS if many else 1)
    return count_function(code[function], block, 2 if many else 1)


def count_rung(cpu: str, core: Core, format: str, many: bool) -> float:
    """Instructions a product of rung's kernel."""
    level = levels.named(core.level)
    shape = (level.tile, 1) if many else (1, 1)
    return count_layout(level, LAYOUTS[format], *shape, cpu) / PRODUCTS


def main() -> None:
    """Print a row for each processor, format and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, metavar="LLAMA_CPP")
    sources = parser.parse_args().sources
    initialize()
    print("core | level | format | rows | rung | llama.cpp | rung / llama.cpp")
    for cpu, core in CORES.items():
        code = functions(core, sources)
        for format in FORMATS:
            for many in (False, True):
                ours, theirs = count_rung(cpu, core, format, many), count_llama(core, code, format, many)
                rows = "many" if many else "1"
                print(f"{cpu} | {core.level} | {format} | {rows} | {ours:.4f} | {theirs:.4f} | {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
