"""Count the instructions of the inner loops of products in assembly, for every level of CPU instructions.

    python benchmarks/instructions.py            # prints the table
    python benchmarks/instructions.py --write    # and keeps it where predictions read it (src/rung/kernels)
    python benchmarks/instructions.py --cores    # for processors that have the levels: also spills, and what multiplies

The kernels are compiled for each level's own target, here, for processors that this machine is not: nothing is run.
Of the code the innermost loops count, and where a block has several units its head in equal parts: per weight with one
row of activations, and per product in a tile of the level's size. There a product that also loads a value into every
lane counts as two: that is what it takes (8 % more products a second for 40 % fewer instructions).
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llvmlite import binding, ir
from numba.core import types

from rung.kernels.cpu import target as compiler
from rung.kernels.cpu.gemm import float_rows, microkernel
from rung.kernels.cpu.pack.layouts import LAYOUTS, UNIT, Layout
from rung.kernels.isa import levels
from rung.kernels.isa.level import Level

TABLE = Path(__file__).parent.parent / "src/rung/kernels/instructions.table"
#: Layouts of weights: of codebooks, blocks of 64 columns stand for longer ones, whose heads take less.
SHOWN = [name for name in LAYOUTS if not re.fullmatch(r"codebook(?!64$)\d+|.*_flipped|cache_.*", name)]
FLOATS = ("f32", "f16", "bf16", "e4m3:128")
#: Products of a unit of a group of rows with one row of activations.
PRODUCTS = 16 * UNIT
HEAD = """\
# Instructions of the inner loops of products, counted in assembly by benchmarks/instructions.py, which writes this.
# level | layout | instructions a weight, one row of activations | instructions a product, many rows; floats have none
"""


#: A vector register beside a place on the stack: what the loop's registers do not hold.
_SPILL = re.compile(r"[xyz]mm\d+.*\((?:%rsp|%rbp)|\((?:%rsp|%rbp).*[xyz]mm\d+|(?:ldr|str|ldp|stp)\s+q\d+.*\[sp")


class _Context:
    """The part of Numba's context that code generators use."""

    @staticmethod
    def get_dummy_value() -> ir.Value:
        return ir.IntType(1)(0)


@dataclass(frozen=True)
class Block:
    """A basic block of assembly: its label, its instructions, and the labels that these name."""

    label: str
    lines: tuple[str, ...]
    targets: tuple[str, ...]


def triple_of(arch: str) -> str:
    """LLVM's name of that kind of processor with Linux."""
    return f"{arch}-unknown-linux-gnu"


def compile_products(level: Level, intrinsic: Any, literals: list[Any], arguments: int, cpu: str = "") -> str:
    """Assembly of one call of an intrinsic of the kernels, for the level's first target, or for a processor."""
    target = level.targets[0]
    name = target.arch.name
    there = frozenset(target.features.replace("+", "").split(","))
    compiler.level, compiler.features, compiler.arch = (lambda: level), (lambda: there), (lambda: name)
    module = ir.Module("products")
    module.triple = triple_of(name)
    wide = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [wide] * arguments), "products")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    kinds = [types.literal(each) for each in literals] + [types.int64] * arguments
    signature, generate = intrinsic._defn(None, *kinds)
    generate(_Context, builder, signature, [None] * len(literals) + list(function.args))
    builder.ret_void()
    return assemble(str(module), cpu or target.cpu, target.features, triple_of(name))


def assemble(text: str, cpu: str, features: str, triple: str) -> str:
    """Optimize a module for a processor and return its assembly."""
    module = binding.parse_assembly(text)
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    module.data_layout = str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False  # so that a turn of the loop is a unit of the layout
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


def blocks(assembly: str) -> list[Block]:
    """Cut assembly into basic blocks."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in assembly.splitlines():
        text = line.split("//")[0].split("##")[0].strip()
        text = re.sub(r"\s+# .*", "", text)
        if label := re.match(r"([\w.$]+):", text):
            found.append((label[1], []))
        elif text and not text.startswith((".", "#", "@")):
            found[-1][1].append(text)
            if re.match(r"(j\w+|b(\.\w+)?|cbn?z|tbn?z)\s", text):
                found.append(("", []))
    return [Block(label, tuple(lines), tuple(re.findall(r"\.L\w+", " ".join(lines[-1:])))) for label, lines in found]


def loops(assembly: str) -> list[list[str]]:
    """Return the bodies of loops, each without the loops in it, the innermost first."""
    all_blocks = blocks(assembly)
    places = {block.label: index for index, block in enumerate(all_blocks) if block.label}
    found = []
    for index, block in enumerate(all_blocks):
        for label in block.targets:
            if places.get(label, index + 1) <= index:
                found.append((places[label], index))
    bodies, taken = [], set()
    for first, last in sorted(set(found), key=lambda pair: pair[1] - pair[0]):
        lines = [line for at in range(first, last + 1) if at not in taken for line in all_blocks[at].lines]
        taken |= set(range(first, last + 1))
        bodies.append(lines)
    return bodies


def main_loops(assembly: str, strips: int = 1) -> list[str]:
    """Return the instructions of the loops in which the products are: the longest, one for each strip of rows."""
    return list(itertools.chain(*sorted(loops(assembly), key=len, reverse=True)[:strips]))


def strips_of(level: Level, tile: int) -> int:
    """In how many strips a level multiplies 16 rows of weights."""
    return 16 // (16 if tile == 1 else level.strip)


def count_layout(level: Level, layout: Layout, tile: int, groups: int, cpu: str = "") -> float:
    """Instructions of a unit of one group of rows, for one row of activations; of a processor, or any of the level."""
    assembly = compile_products(level, microkernel.multiply_groups, [layout.name, tile, groups, level.ahead], 11, cpu)
    strips = strips_of(level, tile)
    lines, heads = main_loops(assembly, strips), 0.0
    units = len(lines) + (sum("{1to" in line for line in lines) if tile > 1 else 0)
    if layout.block > UNIT:
        heads = (len(main_loops(assembly, 2 * strips)) - len(lines)) / (layout.block // UNIT)
    return (units + heads) / (tile * groups)


def count_floats(level: Level, format: str, cpu: str = "") -> float:
    """Instructions of a weight that is stored as a float, for one row; of a processor, or any of the level."""
    assembly = compile_products(level, float_rows._multiply_rows, [format, 1, 1], 8, cpu)
    return len(main_loops(assembly)) / (float_rows._CHAINS * 16)


def count(level: Level) -> dict[str, tuple[float, ...]]:
    """Instructions a weight and a product of every layout at a level."""
    found: dict[str, tuple[float, ...]] = {}
    for name in SHOWN:
        shapes = ((1, 1), (level.tile, 1))
        found[name] = tuple(count_layout(level, LAYOUTS[name], *shape) / PRODUCTS for shape in shapes)
    return found | {format.split(":")[0]: (count_floats(level, format),) for format in FLOATS}


def inspect_core(level: Level, core: str, layout: str, shape: tuple[int, int]) -> tuple[float, int, str]:
    """Return instructions a product, spills, and what multiplies, of the inner loop at a processor's own level."""
    text = compile_products(level, microkernel.multiply_groups, [layout, *shape, level.ahead], 11, core)
    lines = main_loops(text, strips_of(level, shape[0]))
    found = {word[0] for line in lines if (word := re.search(rf"\b(?:{level.multiplies})\b", line))}
    spills = sum(bool(_SPILL.search(line)) for line in lines)
    return len(lines) / (shape[0] * shape[1] * PRODUCTS), spills, " ".join(sorted(found))


def print_cores(chosen: list[Level], layouts: list[str], one_row: bool) -> None:
    """Print a row for each processor, layout and shape of tile; ``one_row``: only that shape."""
    print("level | core | layout | rows x groups | instructions a product | spills | products")
    for level in chosen:
        for core, layout in itertools.product(level.cores, layouts):
            for shape in ((1, 1), (level.tile, 1))[: 1 if one_row else 2]:
                count, spills, found = inspect_core(level, core, layout, shape)
                print(f"{level.name} | {core} | {layout} | {shape[0]} x {shape[1]} | {count:.3g} | {spills} | {found}")


def initialize() -> None:
    """Let LLVM compile for processors of every kind."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def main() -> None:
    """Print the table, and write it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--level", action="append", help="only those levels")
    parser.add_argument("--assembly", metavar="LAYOUT", help="print the loop of a layout in place of counts")
    parser.add_argument("--tile", type=int, default=1)
    parser.add_argument("--cores", nargs="*", metavar="LAYOUT", help="processors in place of levels, for those layouts")
    parser.add_argument("--one-row", action="store_true", help="of processors: no tiles")
    arguments = parser.parse_args()
    initialize()
    chosen = [level for level in levels.every() if not arguments.level or level.name in arguments.level]
    if arguments.cores is not None:
        print_cores(chosen, arguments.cores or ["q4_0", "q8_0", "q4_k", "q6_k"], arguments.one_row)
        return
    if arguments.assembly:
        for level in chosen:
            shape = [arguments.tile, 1]
            text = compile_products(level, microkernel.multiply_groups, [arguments.assembly, *shape, level.ahead], 11)
            print("\n".join(main_loops(text, strips_of(level, arguments.tile))))
        return
    rows = [
        " | ".join((level.name, name, *(f"{number:.3g}" for number in counts)))
        for level in chosen
        for name, counts in count(level).items()
    ]
    text = HEAD + "\n".join(rows) + "\n"
    if arguments.write:
        TABLE.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
