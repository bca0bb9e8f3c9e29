"""Describe a level of CPU instructions: what kernels need that LLVM does not choose well by itself.

A kernel is written on registers of 16 int32 or 16 float32 (64 bytes), which LLVM cuts into what the processor has.
A level says how bytes are multiplied and looked up, and which shape of a tile its registers hold. Needs no Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

Value, Builder = ir.Value, ir.IRBuilder


@dataclass(frozen=True)
class Architecture:
    """One kind of processor: all of its levels share this, so that weights that one packed are those of the others.

    ``name``: as ``rung.hardware.interpreter.arch`` has it. ``register``: a vector register as LLVM's empty assembly
    names it. ``signed_bytes``: packed bytes are signed and not 128 above. ``converts_halves``: the feature without
    which no instruction converts float16; empty where all do. ``pause(b)``: what a thread does that waits in a loop.
    """

    name: str
    register: str
    pause: Callable[[Builder], None]
    signed_bytes: bool = False
    converts_halves: str = ""


@dataclass(frozen=True)
class Target:
    """One kind of processor that has a level: ``needs`` are features by LLVM's names; ``cpu`` and ``features`` are for
    code that uses no more than the level."""

    arch: Architecture
    needs: tuple[str, ...]
    cpu: str
    features: str

    def fits(self, arch: str, features: frozenset[str]) -> bool:
        """Return whether a compiler's target of that kind has what the level needs."""
        return self.arch.name == arch and features.issuperset(self.needs)


@dataclass(frozen=True)
class Level:
    """One set of instructions; a register of it has ``lanes`` int32. A level of a higher ``rank`` is tried first.

    ``tile``: the most rows of activations that are multiplied at once, ``flipped_tile`` the same for codes that are
    taken apart into magnitudes and signs, where that is less. ``groups_of_one_row``: groups of 16 rows of weights that
    share one row of activations, where rows of weights are long; a tile takes one group. ``paired_tile``: rows of
    activations of a tile that takes two, for more rows than ``tile`` and layouts of one part; 0 for none. Half as many
    activations are then loaded into every lane, of which an Ice Lake loads 1.3 a cycle where it multiplies two vectors.
    ``strip``: how many of the 16 rows of weights are multiplied at a time; one row of activations meets all at once.

    Bytes are multiplied in one of two ways. ``dot(b, sums, codes, x)`` adds four products to each int32.
    ``pairs(b, codes, x)`` gives registers of int16 with products, or sums of two, and ``widen(b, registers)`` adds them
    up to int32; int16 hold ``in_int16(largest code)`` of them. ``signed``: codes of a whole byte are multiplied as
    signed ones; ``with_sign(b, x, codes)`` gives ``x`` their signs where only magnitudes can be multiplied.
    ``matrix(b, sums, codes, x)``, where there is one, multiplies signed codes with two rows of activations and more: it
    adds to 2 x 2 int32 the products of 2 x 8 codes with 2 x 8 bytes.

    ``shuffle(b, table, index)``: bytes of a table of 16. ``permute(b, table, index)``, where there is one: 16 values of
    32 bits, or 32 of 16 bits, of a table as large. Without ``shuffles`` no instruction does the first, and tables are
    better read in memory. ``shifts_bytes``: shifts of bytes are instructions.

    ``barrier``: an empty assembly keeps the order of sums, which LLVM would change for one that needs more registers.
    ``fence``: so many vectors of codes are multiplied before more are loaded, 0: as LLVM orders it. It would unpack all
    codes of a unit first, which take more registers than there are.
    ``operand_of_lane``: products take one lane of a register, so that activations are loaded 16 bytes at a time.
    ``interleave``: columns of a row of activations that lie together, before those of the next row (``activations``).
    ``small_offsets``: loads reach so little from an address that LLVM must not choose another one for a loop.
    ``ahead``: so many bytes of packed weights are on their way when some are multiplied; 0: the processor prefetches.
    ``masks``: loads and stores under a mask are instructions.

    What caches hold: ``short_rows``: bytes of a group up to which one row of activations meets one group at a time;
    ``most_groups`` at most meet ``rows_of_a_pass`` rows of activations, or as many as fill whole tiles, and
    ``columns_of_a_pass``, so that these stay in the second cache. ``flipped_from``: so many rows of activations share
    magnitudes and flips, which are then stored. ``cache_ahead``: bytes of keys and values that are prefetched.

    ``multiplies``: the instructions that multiply bytes, as a pattern; ``cores``: processors by LLVM's names in whose
    assembly they are counted (``benchmarks/instructions.py``).
    """

    name: str
    rank: int
    targets: tuple[Target, ...]
    lanes: int
    shuffle: Callable[[Builder, Value, Value], Value]
    tile: int = 4
    flipped_tile: int = 0
    paired_tile: int = 0
    strip: int = 16
    groups_of_one_row: int = 2
    signed: bool = True
    dot: Callable[[Builder, Value, Value, Value], Value] | None = None
    matrix: Callable[[Builder, Value, Value, Value], Value] | None = None
    pairs: Callable[[Builder, Value, Value], list[Value]] | None = None
    widen: Callable[[Builder, list[Value]], Value] | None = None
    with_sign: Callable[[Builder, Value, Value], Value] | None = None
    permute: Callable[[Builder, Value, Value], Value] | None = None
    shuffles: bool = True
    products_in_pair: int = 2
    barrier: bool = False
    fence: int = 0
    operand_of_lane: bool = False
    interleave: int = 32
    small_offsets: bool = False
    shifts_bytes: bool = False
    masks: bool = False
    ahead: int = 0
    short_rows: int = 1 << 16
    rows_of_a_pass: int = 256
    columns_of_a_pass: int = 2048
    most_groups: int = 8
    flipped_from: int = 32
    cache_ahead: int = 8192
    multiplies: str = ""
    cores: tuple[str, ...] = ()

    def activation_offset(self, tile: int, row: int, column: int) -> int:
        """Return the byte of a unit of a panel of ``tile`` rows in which a column (of 32) of a row lies: for each
        ``interleave`` columns, those of one row after the other."""
        wide = self.interleave
        return wide * (tile * (column // wide) + row) + column % wide

    def target(self, arch: str, features: frozenset[str]) -> Target | None:
        """Return the first target that a compiler's own one has all of, or None."""
        return next((target for target in self.targets if target.fits(arch, features)), None)

    def in_int16(self, largest: int) -> int:
        """Return how many results of ``pairs`` fit an int16: of codes up to ``largest`` and signed bytes above -128."""
        return max(1, 32767 // (self.products_in_pair * 127 * largest))
