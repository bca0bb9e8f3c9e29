"""Emit LLVM instructions: types, loads, stores, constants, calls, float16 on every level. Needs llvmlite, not Numba."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir

from rung.kernels.cpu import target

LLVM_VERSION: tuple[int, ...] = binding.llvm_version_info

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()


def pointer(b: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """The integer ``address`` as a pointer to ``kind``."""
    return b.inttoptr(address, kind.as_pointer())


def load(b: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """``kind`` from an address without alignment."""
    value = b.load(pointer(b, address, kind))
    value.align = 1
    return value


def store(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """``value`` to an address without alignment."""
    b.store(value, pointer(b, address, value.type)).align = 1


def constant(kind: ir.VectorType, value: Any) -> ir.Constant:
    """A vector with ``value`` in every lane, or with the values of a list."""
    return ir.Constant(kind, list(value) if isinstance(value, (list, tuple, range)) else [value] * kind.count)


def splat(b: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A vector with ``value`` in every lane."""
    kind = ir.VectorType(value.type, lanes)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), constant(ir.VectorType(I32, lanes), 0))


def call(
    b: ir.IRBuilder, name: str, result: ir.Type, values: list[ir.Value], fastmath: tuple[str, ...] = ()
) -> ir.Value:
    """A call of the LLVM function ``name``, declared on first use."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [value.type for value in values]), name)
    return b.call(function, values, fastmath=fastmath)


def opaque(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The same address or vector, of which LLVM knows nothing: constant offsets from it stay what they are."""
    return b.asm(ir.FunctionType(x.type, [x.type]), "", _same_register(x), [x], side_effect=False)


def fence(b: ir.IRBuilder, x: ir.Value, *, reload: bool = False) -> ir.Value:
    """The same register behind an empty assembly, across which LLVM moves no load. With ``reload`` what was loaded
    before it is loaded again and not kept."""
    kind = ir.FunctionType(x.type, [x.type])
    return b.call(ir.InlineAsm(kind, "", _same_register(x), True), [x], attrs=() if reload else ("readnone",))


def _same_register(x: ir.Value) -> str:
    if isinstance(x.type, ir.IntType):
        return "=r,0"
    return f"={target.architecture().register},0"


def plus(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """``address`` plus a constant number of bytes."""
    return b.add(address, I64(offset)) if offset else address


#: Lines come into all caches. Weights that are read once need no place in the second and third one, but where these are
#: passed (``prefetchnta``) an Ice Lake server has few lines on their way: decoding took twice as long.
_INTO_ALL_CACHES = 3


def prefetch(b: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for a line of memory that will be read soon."""
    kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(I8), I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    b.call(function, [pointer(b, address, I8), I32(0), I32(_INTO_ALL_CACHES), I32(1)])  # a read, of data


def _like(kind: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


def _number(kind: ir.Type, value: Any) -> ir.Constant:
    return constant(kind, value) if isinstance(kind, ir.VectorType) else ir.Constant(kind, value)


def widen(b: ir.IRBuilder, half: ir.Value) -> ir.Value:
    """Return float16 as float32, exact."""
    kind = _like(half.type, F32)
    if target.converts_halves():
        return b.fpext(half, kind)
    whole = _like(half.type, I32)
    bits = b.zext(b.bitcast(half, _like(half.type, I16)), whole)
    sign = b.shl(b.and_(bits, _number(whole, 0x8000)), _number(whole, 16))
    rest = b.shl(b.and_(bits, _number(whole, 0x7FFF)), _number(whole, 13))
    # Exponents of float32 are 112 higher; a product moves those of subnormal numbers too.
    value = b.bitcast(b.fmul(b.bitcast(rest, kind), _number(kind, 2.0**112)), whole)
    special = b.icmp_signed(">=", rest, _number(whole, 0x7C00 << 13))  # infinities and NaN
    value = b.select(special, b.or_(rest, _number(whole, 0x7F800000)), value)
    return b.bitcast(b.or_(value, sign), kind)


def narrow(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return float32 as float16, to nearest even."""
    kind = _like(value.type, F16)
    if target.converts_halves():
        return b.fptrunc(value, kind)
    whole = _like(value.type, I32)
    bits = b.bitcast(value, whole)
    sign = b.lshr(b.and_(bits, _number(whole, -(1 << 31))), _number(whole, 16))
    rest = b.and_(bits, _number(whole, 0x7FFFFFFF))
    odd = b.and_(b.lshr(rest, _number(whole, 13)), _number(whole, 1))
    rounded = b.add(b.add(rest, _number(whole, 0xFFF - (112 << 23))), odd)
    normal = b.lshr(rounded, _number(whole, 13))
    # Below 2^-14 the sum with 0.5 rounds at 2^-24, the last bit of a subnormal float16.
    small = b.fadd(b.bitcast(rest, value.type), _number(value.type, 0.5))
    subnormal = b.sub(b.bitcast(small, whole), _number(whole, 0x3F000000))
    found = b.select(b.icmp_signed("<", rest, _number(whole, 0x38800000)), subnormal, normal)
    found = b.select(b.icmp_signed(">=", rest, _number(whole, 0x477FF000)), _number(whole, 0x7C00), found)
    found = b.select(b.icmp_signed(">", rest, _number(whole, 0x7F800000)), _number(whole, 0x7E00), found)
    return b.bitcast(b.trunc(b.or_(found, sign), _like(value.type, I16)), kind)
