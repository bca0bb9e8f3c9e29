"""Sixteen float32 in plain LLVM vectors: the compiler splits them as the processor needs, so every ISA runs them.

Addresses are integers, no alignment is asked for. Beside arithmetic: what functions of several threads need
(atomic counters, giving way) and a call through an address.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rung.kernels.cpu import target
from rung.kernels.isa import emit
from rung.kernels.isa.emit import F16, F32, I16, I32, I64, call, constant, pointer, splat
from rung.kernels.isa.emit import load as _load
from rung.kernels.isa.emit import store as _store
from rung.kernels.isa.vector import FLOAT, INT, VOID, VectorType, instruction

LANES = 16
BYTES = 64
F32S, F16S, I32S, I16S = (ir.VectorType(kind, LANES) for kind in (F32, F16, I32, I16))

#: The register type of compiled functions; the same as ``rung.kernels.isa.registers.f32x16``.
f32x16 = VectorType(F32, LANES)


# ---- memory


@instruction(f32x16, INT)
def load(b, address):
    """16 float32."""
    return _load(b, address, F32S)


@instruction(f32x16, INT)
def load_half(b, address):
    """16 float16, widened to float32."""
    return emit.widen(b, _load(b, address, F16S))


@instruction(f32x16, INT)
def load_brain(b, address):
    """16 bfloat16, the upper halves of float32, widened to them."""
    wide = b.zext(_load(b, address, I16S), I32S)
    return b.bitcast(b.shl(wide, constant(I32S, 16)), F32S)


@instruction(f32x16, INT)
def load_spread(b, address):
    """One float32 from memory in every lane."""
    return splat(b, _load(b, address, F32), LANES)


@instruction(VOID, INT)
def prefetch(b, address):
    """Ask for a line of memory that will be read soon."""
    emit.prefetch(b, address)


@instruction(VOID, INT, f32x16)
def store(b, address, value):
    """16 float32."""
    _store(b, address, value)


@instruction(VOID, INT, f32x16)
def store_half(b, address, value):
    """16 float32 rounded to float16."""
    _store(b, address, emit.narrow(b, value))


@instruction(FLOAT, INT)
def read_float(b, address):
    """One float32."""
    return _load(b, address, F32)


@instruction(VOID, INT, FLOAT)
def write_float(b, address, value):
    """One float32."""
    _store(b, address, value)


@instruction(INT, INT)
def read_int(b, address):
    """One int64."""
    return _load(b, address, I64)


@instruction(VOID, INT, INT)
def write_int(b, address, value):
    """One int64."""
    _store(b, address, value)


# ---- arithmetic


@instruction(f32x16)
def zero(b):
    """Zeros."""
    return constant(F32S, 0.0)


@instruction(f32x16, FLOAT)
def spread(b, value):
    """``value`` in every lane."""
    return splat(b, value, LANES)


@instruction(f32x16, f32x16, f32x16)
def add(b, x, y):
    """x + y"""
    return b.fadd(x, y)


@instruction(f32x16, f32x16, f32x16)
def subtract(b, x, y):
    """x - y"""
    return b.fsub(x, y)


@instruction(f32x16, f32x16, f32x16)
def multiply(b, x, y):
    """x * y"""
    return b.fmul(x, y)


@instruction(f32x16, f32x16, f32x16)
def divide(b, x, y):
    """x / y"""
    return b.fdiv(x, y)


@instruction(f32x16, f32x16)
def square_root(b, x):
    """The square root."""
    return call(b, "llvm.sqrt.v16f32", F32S, [x])


@instruction(f32x16, f32x16)
def sign(b, x):
    """-1, 0 or 1; 0 where x is NaN."""
    none = constant(F32S, 0.0)
    below = b.select(b.fcmp_ordered("<", x, none), constant(F32S, -1.0), none)
    return b.select(b.fcmp_ordered(">", x, none), constant(F32S, 1.0), below)


def _multiply_add(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    return call(b, "llvm.fmuladd.v16f32", F32S, [x, y, z])


@instruction(f32x16, f32x16, f32x16, f32x16)
def multiply_add(b, x, y, z):
    """x * y + z, rounded once where the processor can."""
    return _multiply_add(b, x, y, z)


@instruction(f32x16, f32x16, f32x16)
def larger(b, x, y):
    """The larger; y where x is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _reduce(b: ir.IRBuilder, name: str, values: list[ir.Value]) -> ir.Value:
    result = call(b, name, F32, values)
    result.fastmath.add("reassoc")
    return result


@instruction(FLOAT, f32x16)
def total(b, x):
    """The sum of the lanes: the upper half is added to the lower, and again, as ``totals`` adds."""
    for count in (8, 4, 2, 1):
        halves = (constant(ir.VectorType(I32, count), range(at, at + count)) for at in (0, count))
        x = b.fadd(*(b.shuffle_vector(x, x, half) for half in halves))
    return b.extract_element(x, I32(0))


@instruction(FLOAT, f32x16)
def largest(b, x):
    """The largest lane that is not NaN."""
    return _reduce(b, "llvm.vector.reduce.fmax.v16f32", [x])


def split_groups(b: ir.IRBuilder, x: ir.Value, y: ir.Value, width: int) -> tuple[ir.Value, ir.Value]:
    """Return the first half of each group of ``2 * width`` lanes, x's and then y's, and the second halves."""
    low: list[int] = []
    high: list[int] = []
    for start in range(0, LANES, 2 * width):
        for source in (start, start + LANES):
            low += range(source, source + width)
            high += range(source + width, source + 2 * width)
    return b.shuffle_vector(x, y, constant(I32S, low)), b.shuffle_vector(x, y, constant(I32S, high))


@instruction(f32x16, *[f32x16] * LANES)
def totals(b, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15):
    """The sum of the lanes of each of 16 vectors: one lane for each, in order."""
    vectors = [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15]
    for width in (8, 4, 2, 1):
        half = len(vectors) // 2
        vectors = [b.fadd(*split_groups(b, vectors[i], vectors[i + half], width)) for i in range(half)]
    return vectors[0]


# ---- functions of one value

#: exp(r) for |r| <= ln(2) / 2: Taylor's terms from 1/7! to 1/2!, together below one unit in the last place.
_TAYLOR = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)
#: ln(2) in two parts, the first with enough zero bits that its products are exact (Cody and Waite).
_LN2 = (0.693145751953125, 1.42860682030941723e-6)


def _exponential(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp(x) with x held to [-87, 88], where the result is a normal float32."""
    x = b.select(b.fcmp_unordered(">", x, constant(F32S, -87.0)), x, constant(F32S, -87.0))
    x = b.select(b.fcmp_unordered("<", x, constant(F32S, 88.0)), x, constant(F32S, 88.0))
    power = call(b, "llvm.rint.v16f32", F32S, [b.fmul(x, constant(F32S, 1.4426950408889634))])
    rest = _multiply_add(b, power, constant(F32S, -_LN2[0]), x)
    rest = _multiply_add(b, power, constant(F32S, -_LN2[1]), rest)
    value: Any = constant(F32S, _TAYLOR[0])
    for term in (*_TAYLOR[1:], 1.0, 1.0):
        value = _multiply_add(b, value, rest, constant(F32S, term))
    bits = b.shl(b.add(b.fptosi(power, I32S), constant(I32S, 127)), constant(I32S, 23))
    return b.fmul(value, b.bitcast(bits, F32S))


@instruction(f32x16, f32x16)
def exponential(b, x):
    """exp(x), x held to [-87, 88]."""
    return _exponential(b, x)


@instruction(f32x16, f32x16)
def silu(b, x):
    """x / (1 + exp(-x))"""
    return b.fdiv(x, b.fadd(constant(F32S, 1.0), _exponential(b, b.fneg(x))))


@instruction(f32x16, f32x16)
def gelu(b, x):
    """x / 2 * (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    cubic = _multiply_add(b, b.fmul(x, x), constant(F32S, 0.044715), constant(F32S, 1.0))
    minus_2u = b.fmul(b.fmul(x, cubic), constant(F32S, -1.5957691216057308))
    return b.fdiv(x, b.fadd(constant(F32S, 1.0), _exponential(b, minus_2u)))


#: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erfc(z) is about (a1 t + ... + a5 t^5) exp(-z^2)
#: with t = 1 / (1 + p z) for z >= 0, off by 1.5e-7 at most.
_ERFC = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERFC_P = 0.3275911


@instruction(f32x16, f32x16)
def gelu_erf(b, x):
    """x / 2 * (1 + erf(x / sqrt(2))), off by 1.1e-7 * abs(x) at most."""
    z = b.fmul(call(b, "llvm.fabs.v16f32", F32S, [x]), constant(F32S, 0.7071067811865476))
    t = b.fdiv(constant(F32S, 1.0), _multiply_add(b, z, constant(F32S, _ERFC_P), constant(F32S, 1.0)))
    value: Any = constant(F32S, _ERFC[0])
    for term in _ERFC[1:]:
        value = _multiply_add(b, value, t, constant(F32S, term))
    tail = b.fmul(b.fmul(value, t), _exponential(b, b.fneg(b.fmul(z, z))))
    half = b.fmul(b.fmul(x, constant(F32S, 0.5)), tail)  # x / 2 * erfc(abs(x) / sqrt(2))
    return b.select(b.fcmp_ordered(">", x, constant(F32S, 0.0)), b.fsub(x, half), half)


@instruction(f32x16, f32x16)
def tangent(b, x):
    """The hyperbolic tangent: 1 - 2 / (1 + exp(2x))."""
    grown = _exponential(b, b.fmul(x, constant(F32S, 2.0)))
    return b.fsub(constant(F32S, 1.0), b.fdiv(constant(F32S, 2.0), b.fadd(constant(F32S, 1.0), grown)))


# ---- threads


@instruction(INT, INT, INT)
def fetch_add(b, address, count):
    """Adds to an int64 of several threads; what it was before."""
    return b.atomic_rmw("add", pointer(b, address, I64), count, "acq_rel")


@instruction(INT, INT)
def load_acquire(b, address):
    """An int64 of several threads, and what its writer wrote before it."""
    return b.load_atomic(pointer(b, address, I64), "acquire", 8)


@instruction(INT, INT, INT, INT)
def replace_if(b, address, expected, value):
    """Writes ``value`` over an int64 of several threads if it is ``expected``; 1 if it was, else 0."""
    found = b.cmpxchg(pointer(b, address, I64), expected, value, "acq_rel", "acquire")
    return b.zext(b.extract_value(found, 1), I64)


@instruction(VOID)
def give_way(b):
    """Let another thread of the machine run: ``sched_yield`` of the C library."""
    call(b, "sched_yield", I32, [])


@instruction(VOID)
def rest(b):
    """A moment of rest for a thread that waits in a loop."""
    target.architecture().pause(b)


@instruction(INT)
def rows_of_a_pass(b):
    """``Level.rows_of_a_pass``."""
    return I64(target.level().rows_of_a_pass)


@instruction(INT)
def cache_ahead(b):
    """``Level.cache_ahead``."""
    return I64(target.level().cache_ahead)


def _jump(b: ir.IRBuilder, address: ir.Value, values: list[ir.Value]) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(values))
    b.call(pointer(b, address, kind), values)


@instruction(VOID, INT, INT, INT, INT)
def call_three(b, address, first, second, third):
    """Calls the C function ``void(int64, int64, int64)`` at an address."""
    _jump(b, address, [first, second, third])


@instruction(VOID, INT, INT, INT, INT, INT, INT, INT, INT, INT)
def call_eight(b, address, a0, a1, a2, a3, a4, a5, a6, a7):
    """Calls the C function of eight int64 at an address."""
    _jump(b, address, [a0, a1, a2, a3, a4, a5, a6, a7])


def _calling(count: int, numbers: tuple[int, ...]) -> Any:
    """Calls the C function of ``count`` int64 at an address with words from memory, some of them replaced."""

    def emit(b, address, words, values):
        every = [_load(b, b.add(words, I64(8 * index)), I64) for index in range(count)]
        for slot, value in zip(numbers, values, strict=True):
            every[slot] = value
        _jump(b, address, every)

    if len(numbers) == 2:

        @instruction(VOID, INT, INT, INT, INT)
        def call_words(b, address, words, first, second):
            emit(b, address, words, (first, second))

    else:

        @instruction(VOID, INT, INT, INT, INT, INT)
        def call_words(b, address, words, first, second, third):
            emit(b, address, words, (first, second, third))

    return call_words


#: ``(address, words, x, panel)``: a kernel of ``activations``, of 10 arguments.
call_fill = _calling(10, (0, 3))
#: ``(address, words, x, first, last)``: a kernel of ``linear``, of 16 arguments.
call_groups = _calling(16, (2, 7, 8))
