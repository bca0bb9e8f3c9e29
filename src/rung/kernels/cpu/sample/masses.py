"""Probabilities as whole numbers, 16 logits at a time, and what a search among logits needs, in plain LLVM.

The *mass* of a token is exp((logit - highest) / temperature) in units of 2^-42, rounded to an integer: the likeliest
token has 2^42. Sums of integers are exact, so they are the same in any order, and on any number of threads.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from rung.kernels.cpu.sample.record import LN2, LOG2_E, LOWEST_EXPONENT, MASS_BITS, TAYLOR
from rung.kernels.isa.codes import F64S
from rung.kernels.isa.emit import I16, I64, call, constant, load, splat, store
from rung.kernels.isa.generic import F32S, LANES, f32x16, split_groups
from rung.kernels.isa.vector import INT, VOID, VectorType, instruction

_I64S, _WIDE = ir.VectorType(I64, LANES), ir.IntType(128)
#: Sixteen int64.
i64x16 = VectorType(I64, LANES)
#: Added to a float64 of less than 2^51 it leaves the nearest integer, ties to even, in the lowest bits.
_ROUND = 1.5 * 2.0**52
_UNIT = 2.0**52
_UNIT_BITS = 0x4330000000000000


@instruction(i64x16, f32x16, types.float64, types.float64)
def masses(b, x, highest, inverse):
    """The masses of 16 logits; ``inverse`` is 1 / temperature.

    No product is fused with a sum, so that NumPy computes the same bits.
    """
    below = b.fsub(b.fpext(x, F64S), splat(b, highest, LANES))
    y = b.fmul(below, splat(b, inverse, LANES))
    y = b.select(b.fcmp_ordered(">", y, constant(F64S, LOWEST_EXPONENT)), y, constant(F64S, LOWEST_EXPONENT))
    power = b.fsub(b.fadd(b.fmul(y, constant(F64S, LOG2_E)), constant(F64S, _ROUND)), constant(F64S, _ROUND))
    rest = b.fsub(y, b.fmul(power, constant(F64S, LN2[0])))
    rest = b.fsub(rest, b.fmul(power, constant(F64S, LN2[1])))
    value = constant(F64S, TAYLOR[0])
    for term in TAYLOR[1:]:
        value = b.fadd(b.fmul(value, rest), constant(F64S, term))
    exponent = b.bitcast(b.fadd(power, constant(F64S, _ROUND + MASS_BITS)), _I64S)
    scaled = b.bitcast(b.add(b.bitcast(value, _I64S), b.shl(exponent, constant(_I64S, 52))), F64S)
    return b.sub(b.bitcast(b.fadd(scaled, constant(F64S, _UNIT)), _I64S), constant(_I64S, _UNIT_BITS))


@instruction(i64x16, i64x16, i64x16)
def add_masses(b, x, y):
    """x + y"""
    return b.add(x, y)


@instruction(INT, i64x16)
def mass_total(b, x):
    """The sum of the lanes."""
    return call(b, "llvm.vector.reduce.add.v16i64", I64, [x])


@instruction(VOID, INT, i64x16)
def store_masses(b, address, x):
    """16 int64."""
    store(b, address, x)


def _larger(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@instruction(INT, INT, INT)
def scan_blocks(b, address, out):
    """Write the largest of each of 16 blocks of 64 float32; 0 if none of all is NaN.

    Vectors of maxima are folded as ``generic.totals`` folds sums, two as soon as both are there: few are held at once.
    """
    unordered = constant(ir.VectorType(ir.IntType(1), LANES), 0)

    def fold(first: int, apart: int) -> ir.Value:
        nonlocal unordered
        if apart == LANES:
            w, x, y, z = (load(b, b.add(address, I64(256 * first + 64 * part)), F32S) for part in range(4))
            for pair in ((w, x), (y, z)):
                unordered = b.or_(unordered, b.fcmp_unordered("uno", *pair))
            return _larger(b, _larger(b, w, x), _larger(b, y, z))
        return _larger(b, *split_groups(b, fold(first, 2 * apart), fold(first + apart, 2 * apart), apart))

    store(b, out, fold(0, 1))
    return b.zext(b.bitcast(unordered, I16), I64)


@instruction(INT, INT, INT)
def high_product(b, x, y):
    """x * y / 2^64, of unsigned integers."""
    product = b.mul(b.zext(x, _WIDE), b.zext(y, _WIDE))
    return b.trunc(b.lshr(product, _WIDE(64)), I64)
