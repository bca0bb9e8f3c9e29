"""Look 16 values up by codes of four bits, the way that the level of CPU instructions is quick at.

Values are 16 float32, or 16 of 16 bits that are there twice in a register. A byte of codes names two of them, its high
four bits the first.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core.cgutils import alloca_once

from rung.kernels.cpu import target
from rung.kernels.isa.emit import I8, I16, I32, I64, constant, load, plus, store
from rung.kernels.isa.level import Level

_CODES = 16  # bytes of codes that are looked up at a time


def store_looked_up(b: ir.IRBuilder, address: ir.Value, codes: ir.Value, values: ir.Value) -> None:
    """Write the 32 values that 16 bytes of codes name."""
    level = target.level()
    if level.permute is not None:
        store(b, address, _permuted(b, level, codes, values))
    elif level.shuffles:
        _store_shuffled(b, level, address, codes, values)
    else:
        _store_from_memory(b, address, codes, values)


def _permuted(b: ir.IRBuilder, level: Level, codes: ir.Value, values: ir.Value) -> ir.Value:
    """Look up whole values in a register; the bits of an index above its lowest do not matter."""
    assert level.permute is not None
    wide = ir.VectorType(I32, _CODES)
    low = b.zext(codes, wide)
    high = b.lshr(low, constant(wide, 4))
    if values.type.count == _CODES:
        return _in_turns(b, level.permute(b, values, high), level.permute(b, values, low))
    both = b.or_(high, b.shl(low, constant(wide, 16)))
    return level.permute(b, values, b.bitcast(both, ir.VectorType(I16, 2 * _CODES)))


def _in_turns(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return x[0], y[0], x[1], y[1] and so on."""
    count = x.type.count
    order = [lane // 2 + count * (lane % 2) for lane in range(2 * count)]
    return b.shuffle_vector(x, y, constant(ir.VectorType(I32, 2 * count), order))


def _store_shuffled(b: ir.IRBuilder, level: Level, address: ir.Value, codes: ir.Value, values: ir.Value) -> None:
    """Look up each byte of the values in a table of its own, and join the bytes again.

    Registers are shuffled in pieces of 16 bytes. Each takes every so many of the codes in fours, so that joined values
    of all pieces follow one another.
    """
    width = _width(values)
    pieces = min(level.lanes, 2 * _CODES // 4) // 4
    indices = _in_turns(b, b.lshr(codes, constant(codes.type, 4)), b.and_(codes, constant(codes.type, 15)))
    stored = b.bitcast(values, ir.VectorType(I8, 64))
    tables = [_take(b, stored, [width * k + byte for k in range(_CODES)] * pieces) for byte in range(width)]
    run = 4 if width == 4 else 8  # values of a piece of a register
    for first in range(0, 2 * _CODES, _CODES * pieces):
        order = [
            first + run * (pieces * part + piece) + each
            for piece in range(pieces)
            for part in range(_CODES // run)
            for each in range(run)
        ]
        index = _take(b, indices, order)
        found = [level.shuffle(b, table, index) for table in tables]
        for at, joined in enumerate(_joined(b, found, pieces)):
            store(b, plus(b, address, width * first + 16 * pieces * at), joined)


def _joined(b: ir.IRBuilder, found: list[ir.Value], pieces: int) -> list[ir.Value]:
    """Join the bytes of values, which are apart, within pieces of 16 bytes: registers in the order of the values."""
    if len(found) == 2:
        return [_half(b, *found, pieces, upper) for upper in (False, True)]
    words = ir.VectorType(I16, 8 * pieces)
    registers = []
    for upper in (False, True):
        low, high = (b.bitcast(_half(b, *pair, pieces, upper), words) for pair in (found[:2], found[2:]))
        registers += [_half(b, low, high, pieces, half) for half in (False, True)]
    return registers


def _half(b: ir.IRBuilder, x: ir.Value, y: ir.Value, pieces: int, upper: bool) -> ir.Value:
    """Return the lower or upper halves of all pieces of x and y, one of x, one of y in turns."""
    count = x.type.count
    each = count // pieces
    order = [
        piece * each + upper * each // 2 + lane // 2 + count * (lane % 2)
        for piece in range(pieces)
        for lane in range(each)
    ]
    return b.shuffle_vector(x, y, constant(ir.VectorType(I32, count), order))


def _take(b: ir.IRBuilder, x: ir.Value, order: list[int]) -> ir.Value:
    return b.shuffle_vector(x, x, constant(ir.VectorType(I32, len(order)), order))


def _store_from_memory(b: ir.IRBuilder, address: ir.Value, codes: ir.Value, values: ir.Value) -> None:
    """Read value after value from a copy in memory, where no instruction looks anything up."""
    width, place = _width(values), alloca_once(b, values.type)
    b.store(values, place)
    table, kind = b.ptrtoint(place, I64), ir.IntType(8 * width)
    for k in range(_CODES):
        code = b.zext(b.extract_element(codes, I32(k)), I64)
        for half, index in enumerate((b.lshr(code, I64(4)), b.and_(code, I64(15)))):
            value = load(b, b.add(table, b.mul(index, I64(width))), kind)
            store(b, plus(b, address, width * (2 * k + half)), value)


def _width(values: ir.Value) -> int:
    """Bytes of a value: 4 where there are 16, 2 where 16 are there twice."""
    return 64 // int(values.type.count)
