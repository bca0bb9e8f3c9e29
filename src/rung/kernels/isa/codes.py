"""Define what encoders and decoders of blocks need beside ``generic``: rounding, choices, codes of 16 weights as int32,
and sums in float64. Plain LLVM too: every instruction set runs them, to the same bits.
"""

from __future__ import annotations

from llvmlite import ir

from rung.kernels.isa.emit import F32, I8, I16, I64, call, constant, load, narrow, splat, store, widen
from rung.kernels.isa.generic import BYTES, F32S, I32S, LANES, f32x16
from rung.kernels.isa.registers import i32x16
from rung.kernels.isa.vector import INT, VOID, VectorType, instruction

DOUBLE = ir.DoubleType()
F64S, BYTES16 = ir.VectorType(DOUBLE, LANES), ir.VectorType(I8, LANES)
#: Sixteen float64.
f64x16 = VectorType(DOUBLE, LANES)


# ---- float32


@instruction(f32x16, f32x16)
def nearest(b, x):
    """The nearest integer, ties to even."""
    return call(b, "llvm.rint.v16f32", F32S, [x])


@instruction(f32x16, f32x16)
def ceiling(b, x):
    """The next integer that is not below."""
    return call(b, "llvm.ceil.v16f32", F32S, [x])


@instruction(f32x16, f32x16)
def magnitude(b, x):
    """Without its sign."""
    return call(b, "llvm.fabs.v16f32", F32S, [x])


@instruction(f32x16, f32x16, f32x16)
def signed(b, x, y):
    """x with the sign of y."""
    return call(b, "llvm.copysign.v16f32", F32S, [x, y])


@instruction(f32x16, f32x16, f32x16)
def smaller(b, x, y):
    """The smaller; y where they are equal or one is NaN."""
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@instruction(f32x16, f32x16, f32x16, f32x16, f32x16)
def below(b, x, y, then, other):
    """``then`` where x < y, else ``other``."""
    return b.select(b.fcmp_ordered("<", x, y), then, other)


@instruction(f32x16, f32x16)
def to_half(b, x):
    """Rounded to float16."""
    return widen(b, narrow(b, x))


@instruction(f32x16, f32x16)
def largest_of_eight(b, x):
    """In each lane the largest of the first eight lanes, or of the last."""
    for step in (4, 2, 1):
        other = b.shuffle_vector(x, x, constant(I32S, [lane ^ step for lane in range(LANES)]))
        x = b.select(b.fcmp_ordered(">", x, other), x, other)
    return x


@instruction(VOID, INT, INT, INT)
def turn(b, out, address, stride):
    """Writes 16 x 16 float32 to ``out``, of which column k lies at ``address + k * stride``."""
    rows = [load(b, b.add(address, b.mul(stride, I64(k))), F32S) for k in range(LANES)]
    for step in (8, 4, 2, 1):
        result = list(rows)
        for k in range(LANES):
            if k & step:
                continue
            x, y = rows[k], rows[k | step]
            low = [lane if not lane & step else LANES + (lane ^ step) for lane in range(LANES)]
            high = [lane | step if not lane & step else LANES + lane for lane in range(LANES)]
            result[k] = b.shuffle_vector(x, y, constant(I32S, low))
            result[k | step] = b.shuffle_vector(x, y, constant(I32S, high))
        rows = result
    for k, row in enumerate(rows):
        store(b, b.add(out, I64(BYTES * k)), row)


@instruction(f32x16, f32x16)
def butterflies(b, x):
    """Times the Hadamard matrix of 16 rows: sums and differences of lanes 1, 2, 4 and 8 apart."""
    for step in (1, 2, 4, 8):
        other = b.shuffle_vector(x, x, constant(I32S, [lane ^ step for lane in range(LANES)]))
        order = constant(I32S, [lane + LANES if lane & step else lane for lane in range(LANES)])
        x = b.shuffle_vector(b.fadd(x, other), b.fsub(other, x), order)
    return x


# ---- codes


@instruction(i32x16, f32x16)
def whole(b, x):
    """The integer part."""
    return b.fptosi(x, I32S)


@instruction(i32x16, i32x16, i32x16, INT)
def join_bits(b, low, high, bits):
    """``low`` with ``high`` above its lowest ``bits`` bits."""
    by = splat(b, b.trunc(bits, I32S.element), LANES)
    return b.or_(low, b.shl(high, by))


@instruction(i32x16, i32x16, INT, INT)
def part(b, x, bits, mask):
    """The bits of a mask, ``bits`` above the lowest."""
    by, kept = (splat(b, b.trunc(value, I32S.element), LANES) for value in (bits, mask))
    return b.and_(b.lshr(x, by), kept)


@instruction(i32x16, i32x16, i32x16)
def in_pairs(b, x, y):
    """Bytes of two codes each, of the 32 in x and y: the first of a pair in the high nibble."""
    first, second = (b.shuffle_vector(x, y, constant(I32S, range(start, 2 * LANES, 2))) for start in (0, 1))
    return b.or_(b.shl(first, constant(I32S, 4)), second)


@instruction(i32x16, f32x16, INT)
def rank(b, x, middles):
    """How many of the 15 float32 at an address are below."""
    count = constant(I32S, 0)
    for k in range(15):
        middle = splat(b, load(b, b.add(middles, I64(4 * k)), F32), LANES)
        count = b.add(count, b.zext(b.fcmp_ordered(">", x, middle), I32S))
    return count


@instruction(f32x16, f32x16, INT, INT)
def climbed(b, x, middles, steps):
    """The sum of those of 15 steps whose middles are below x, and of a 16th; float32 at two addresses."""
    where = [splat(b, load(b, b.add(steps, I64(4 * k)), F32), LANES) for k in range(LANES)]
    value = where[15]
    for k in range(15):
        middle = splat(b, load(b, b.add(middles, I64(4 * k)), F32), LANES)
        step = b.select(b.fcmp_ordered(">", x, middle), where[k], constant(F32S, 0.0))
        value = b.fadd(value, step)
    return value


@instruction(INT, i32x16, INT)
def bits_of_all(b, x, bit):
    """A bit of each lane, as 16 bits."""
    lowest = b.trunc(b.lshr(x, splat(b, b.trunc(bit, I32S.element), LANES)), ir.VectorType(ir.IntType(1), LANES))
    return b.zext(b.bitcast(lowest, I16), I64)


# ---- sums in float64


@instruction(f64x16)
def none(b):
    """Zeros."""
    return constant(F64S, 0.0)


@instruction(f64x16, f64x16, f32x16, f32x16)
def add_distance(b, sums, x, y):
    """sums + (x - y)^2, in float64."""
    off = b.fsub(b.fpext(x, F64S), b.fpext(y, F64S))
    return b.fadd(sums, b.fmul(off, off))


@instruction(VOID, INT, f64x16)
def store_sum(b, address, sums):
    """The sum of the lanes as one float64."""
    summed = call(b, "llvm.vector.reduce.fadd.v16f64", DOUBLE, [DOUBLE(-0.0), sums], ("reassoc",))
    store(b, address, summed)
