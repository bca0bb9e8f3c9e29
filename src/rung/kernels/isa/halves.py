"""Convert float16 to float32 and back, also where the processor has no instruction for it (many before 2013)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rung.kernels.cpu import target
from rung.kernels.isa.emit import F16, F32, I16, I32, constant


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
