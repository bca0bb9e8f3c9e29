"""The counts of instructions that predictions rest on are those of the kernels as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rung.kernels import instructions
from rung.kernels.isa import levels

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "instructions.py"


def counted(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("level", [level.name for level in levels.every()])
def test_the_table_holds_what_is_counted_now(level):
    """Within a tenth, since another LLVM orders and spills a little differently."""
    rows = [line.split(" | ") for line in counted("--level", level).splitlines() if not line.startswith("#")]
    assert {row[1] for row in rows} == {layout for name, layout in instructions.table() if name == level}
    for name, layout, *numbers in rows:
        assert [float(number) for number in numbers] == pytest.approx(instructions.table()[name, layout], rel=0.1)


@pytest.mark.slow
def test_the_loop_that_is_counted_holds_the_products():
    """With AVX2: 8 sums of byte products for each 64 bytes of codes, 2 registers each, of 4 rows."""
    loop = counted("--level", "avx2", "--assembly", "q4_0", "--tile", "4")
    assert loop.count("vpmaddubsw") == 8 * 2 * 4
    assert loop.count("vcvtph2ps") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("level", "products"), [("neon_dotprod", "sdot"), ("neon_i8mm", "smmla")])
def test_strips_of_many_rows_make_all_products_of_a_unit(level, products):
    """16 rows of weights of 32 columns times 8 rows of activations: 16 products by ``sdot``, 32 by ``smmla``."""
    loops = counted("--level", level, "--assembly", "q4_0", "--tile", "8")
    assert loops.count(products) * {"sdot": 16, "smmla": 32}[products] == 16 * 32 * 8


#: Most instructions of a loop of one row with a place on the stack, and the most of them in a hundred.
SPILLS = {"avx512_vnni": (0, 0), "avx512": (0, 0), "avx_vnni": (8, 7), "avx2": (6, 5), "avx": (32, 12)}


@pytest.mark.parametrize(
    "names", [("avx512_vnni", "avx512", "avx_vnni", "avx2"), pytest.param(("avx",), marks=pytest.mark.slow)]
)
def test_one_row_of_every_layout_holds_its_registers_on_x86(names):
    """AVX has 16 registers of 16 bytes: those of q8_0 and K-quants are more."""
    layouts = sorted({layout for _, layout in instructions.table()} - {"f32", "f16", "bf16", "e4m3"})
    chosen = [argument for level in names for argument in ("--level", level)]
    rows = [line.split(" | ") for line in counted("--one-row", *chosen, "--cores", *layouts).splitlines()[1:]]
    assert len(rows) == len(layouts) * sum(len(levels.named(level).cores) for level in names)
    for level, core, layout, _, count, spills, products in rows:
        most, share = SPILLS[level]
        assert products, (core, layout)
        assert int(spills) <= min(most, share / 100 * float(count) * 512), (core, layout, spills)


@pytest.mark.slow
def test_loops_of_each_processor_multiply_bytes_and_rows_hold_their_registers():
    """Compiled for processors that are not here. A tile of many rows keeps its totals on the stack where it is not cut
    into strips, and little else."""
    simple, others = ("q4_0", "q8_0", "q4_k"), ("q6_k", "q2_k", "nibble16_min", "codebook64")
    rows = [line.split(" | ") for line in counted("--cores", *simple, *others).splitlines()[1:]]
    assert {row[1] for row in rows} >= {"znver2", "haswell", "skylake-avx512", "alderlake", "ivybridge"}
    assert {row[1] for row in rows} >= {"cortex-a72", "cortex-a76", "neoverse-v1", "neoverse-n2", "apple-m1"}
    for level, core, layout, shape, count, spills, products in rows:
        assert products, (core, layout, shape)
        if level in ("ssse3", "avx"):  # 16 registers of 16 bytes: counted, not bounded
            continue
        tile, groups = map(int, shape.split(" x "))
        if level.startswith("neon"):  # whose totals stay in registers: a tile is cut into strips
            one_row, part = 0, 0.02 if layout in simple else 0.025  # 1.4 % at most (q4_k), and 2.1 % (q2_k, Cortex-A76)
        else:  # AVX2: q6_k and q2_k keep 8 at most of a loop of one row on the stack, and 26.5 % of a tile
            one_row, part = (3, 0.2) if layout in simple else (8, 0.27)
        most = one_row if tile == 1 else part * float(count) * tile * groups * 512
        assert int(spills) <= most, (core, layout, shape, spills)
