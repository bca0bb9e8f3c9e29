"""Single values at integer addresses, and calls of compiled functions through their address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from rung.kernels.isa.emit import F16, F32, I8, I16, I32, I64, load, narrow, store, widen
from rung.kernels.isa.products import packs_signed_bytes
from rung.kernels.isa.vector import FLOAT, INT, VOID, instruction

_OFFSETS = 0x80808080  # 128 in each of four bytes


@instruction(INT, INT)
def read_u8(b, address):
    """One unsigned byte."""
    return b.zext(load(b, address, I8), I64)


@instruction(INT, INT)
def read_u16(b, address):
    """Two bytes, unsigned."""
    return b.zext(load(b, address, I16), I64)


@instruction(INT, INT)
def read_u32(b, address):
    """Four bytes, unsigned."""
    return b.zext(load(b, address, I32), I64)


@instruction(INT, INT)
def read_i64(b, address):
    """One int64."""
    return load(b, address, I64)


@instruction(FLOAT, INT)
def half(b, bits):
    """The float16 of the lowest two bytes, exact."""
    return widen(b, b.bitcast(b.trunc(bits, I16), F16))


@instruction(FLOAT, INT)
def as_f32(b, bits):
    """The float32 of the lowest four bytes."""
    return b.bitcast(b.trunc(bits, I32), F32)


@instruction(INT, FLOAT)
def bits_of(b, value):
    """The four bytes of a float32, unsigned."""
    return b.zext(b.bitcast(value, I32), I64)


@instruction(INT, INT)
def offset_signed(b, word):
    """Four signed bytes as they are packed: 128 above where packed bytes are unsigned. Its own reverse."""
    return word if packs_signed_bytes() else b.xor(word, I64(_OFFSETS))


@instruction(INT, INT)
def offset_unsigned(b, word):
    """Four bytes that are 128 above signed ones as they are packed."""
    return b.xor(word, I64(_OFFSETS)) if packs_signed_bytes() else word


@instruction(VOID, INT, FLOAT)
def write_half(b, address, value):
    """A float32 rounded to float16."""
    store(b, address, narrow(b, value))


@instruction(VOID, INT, INT)
def write_u8(b, address, value):
    """The lowest byte of ``value``."""
    store(b, address, b.trunc(value, I8))


@instruction(VOID, INT, INT)
def write_u16(b, address, value):
    """The lowest two bytes of ``value``."""
    store(b, address, b.trunc(value, I16))


@instruction(VOID, INT, INT)
def write_u32(b, address, value):
    """The lowest four bytes of ``value``."""
    store(b, address, b.trunc(value, I32))


@instruction(VOID, INT, FLOAT)
def write_f32(b, address, value):
    """One float32."""
    store(b, address, value)


@instruction(INT, INT)
def call_number(b, address):
    """Calls a C function without arguments that returns an int."""
    function = b.inttoptr(address, ir.FunctionType(I32, []).as_pointer())
    return b.sext(b.call(function, []), I64)


@instruction(INT, INT, INT, INT, INT)
def system_call(b, address, number, first, second):
    """Calls the C library's ``syscall``, which is at ``address``, with two arguments and zeros; below zero where it
    failed."""
    zero = I64(0)
    function = b.inttoptr(address, ir.FunctionType(I64, [I64] * 6).as_pointer())
    return b.call(function, [number, first, second, zero, zero, zero])


@intrinsic
def call_address(typing_context, address, arguments):
    """Calls the compiled function at ``address``, which takes the tuple of int64 and returns nothing."""
    if not isinstance(arguments, (types.UniTuple, types.Tuple)):
        return None
    count = len(arguments.types)

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * count)
        function = b.inttoptr(values[0], kind.as_pointer())
        b.call(function, [b.extract_value(values[1], index) for index in range(count)])
        return context.get_dummy_value()

    return VOID(INT, types.UniTuple(INT, count)), generate


def _array(element: types.Type, kind: ir.Type) -> Any:
    @instruction(types.CPointer(element), INT)
    def array(b, address):
        return b.inttoptr(address, kind.as_pointer())

    return array


#: An address as an array, which is read and written with brackets; an index below zero is before it.
floats, doubles = _array(types.float32, F32), _array(types.float64, ir.DoubleType())


numbers, shorts = _array(types.int64, I64), _array(types.int32, I32)
