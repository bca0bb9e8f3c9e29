"""Sums of products of bytes on every level: the part of a quantized kernel that depends on the processor.

A register holds 64 bytes: four consecutive columns of each of 16 rows. A kernel asks for a sum with the largest code
of its layout, adds codes times activations to it, and takes the total. Where a level multiplies into int16, products
are added there as long as it holds them, and only then widened to int32.

Tables of 16 values, 16 float32 or 16 of 16 bits that are there twice in a register, are looked up the way that the
level is quick at. A byte of codes names two of them, its high four bits the first.
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba.core.cgutils import alloca_once

from rung.kernels.cpu import target
from rung.kernels.isa.emit import I8, I16, I32, I64, call, constant, fence, load, plus, splat, store
from rung.kernels.isa.level import Level

binding.initialize_native_asmparser()  # for the empty assembly of ``Level.barrier``

LANES = 16
_CODES = 16  # bytes of codes that are looked up at a time
_OFFSET = 0x80808080 - (1 << 32)  # 128 in each byte


def split(b: ir.IRBuilder, x: ir.Value, lanes: int) -> list[ir.Value]:
    """Split a vector into vectors of ``lanes`` values."""
    if lanes == x.type.count:
        return [x]
    starts, kind = range(0, x.type.count, lanes), ir.VectorType(I32, lanes)
    undefined = ir.Constant(x.type, ir.Undefined)
    return [b.shuffle_vector(x, undefined, constant(kind, range(at, at + lanes))) for at in starts]


def cut(b: ir.IRBuilder, x: ir.Value, lanes: int) -> list[ir.Value]:
    """Cut int32 into registers of ``lanes`` int32, as bytes."""
    return [b.bitcast(part, ir.VectorType(I8, 4 * lanes)) for part in split(b, x, lanes)]


def join(b: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """Join vectors of one type to a longer one."""
    while len(parts) > 1:
        lanes = 2 * parts[0].type.count
        order = constant(ir.VectorType(I32, lanes), range(lanes))
        parts = [b.shuffle_vector(x, y, order) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def in_turns(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return x[0], y[0], x[1], y[1] and so on."""
    count = x.type.count
    order = [lane // 2 + count * (lane % 2) for lane in range(2 * count)]
    return b.shuffle_vector(x, y, constant(ir.VectorType(I32, 2 * count), order))


def every_other(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return x[0], x[2] and so on, and x[1], x[3] and so on: what ``in_turns`` has joined."""
    count = x.type.count
    kind = ir.VectorType(I32, count // 2)
    even, odd = (b.shuffle_vector(x, x, constant(kind, range(first, count, 2))) for first in (0, 1))
    return even, odd


def remove_offset(b: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    """Turn bytes that are 128 above signed ones into these."""
    return b.xor(codes, constant(codes.type, _OFFSET))


def packs_signed_bytes() -> bool:
    """Return whether packed bytes are signed and not 128 above; see ``Architecture``."""
    return target.architecture().signed_bytes


def pairs_of_rows(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> list[ir.Value]:
    """Return four columns of some rows of weights and the next four as registers of two rows with eight columns."""
    count, kind = x.type.count, ir.VectorType(I32, 4)
    orders = [(row, count + row, row + 1, count + row + 1) for row in range(0, count, 2)]
    return [b.shuffle_vector(x, y, constant(kind, order)) for order in orders]


def broadcast(b: ir.IRBuilder, x: ir.Value, at: int) -> ir.Value:
    """Load bytes ``at`` to ``at + 3`` of a row of activations into every lane."""
    if not target.level().operand_of_lane:
        return splat(b, load(b, plus(b, x, at), I32), LANES)
    quarter = load(b, plus(b, x, at & ~15), ir.VectorType(I32, 4))
    return b.shuffle_vector(quarter, quarter, constant(ir.VectorType(I32, LANES), at % 16 // 4))


class Codes:
    """Codes of 64 weights, ready to be multiplied with several rows of activations."""

    flips: tuple[ir.Value, ...] = ()

    def __init__(self, b: ir.IRBuilder, codes: ir.Value, bytewide: bool, is_signed: bool = False) -> None:
        """``bytewide``: codes take a whole byte, 128 above the weights' own; ``is_signed``: that is taken off already
        where the level wants it."""
        level = target.level()
        signed = bytewide and level.signed
        if signed and not is_signed:
            codes = remove_offset(b, codes)
        self.parts = cut(b, codes, level.lanes)
        self.magnitudes: list[ir.Value] = []
        if signed and level.with_sign is not None:
            self.magnitudes = [_magnitude(b, part) for part in self.parts]


class FlippedCodes(Codes):
    """Signed codes as magnitudes at an address, and bytes of ones after them where codes are negative.

    Those flip the bits of activations, on any pipe of a processor; a sum is then less by each negative magnitude.
    """

    def __init__(self, b: ir.IRBuilder, address: ir.Value, rows: int = LANES) -> None:
        """``rows``: of weights, of which the first lies at the address."""
        lanes = target.level().lanes
        kind = ir.VectorType(I32, rows)
        self.magnitudes = cut(b, load(b, address, kind), lanes)
        self.flips = tuple(cut(b, load(b, plus(b, address, 64), kind), lanes))
        self.parts = self.magnitudes


def store_flipped(b: ir.IRBuilder, address: ir.Value, codes: Codes) -> None:
    """Write signed codes as ``FlippedCodes`` reads them."""
    step = 64 // len(codes.parts)
    for index, (part, magnitude) in enumerate(zip(codes.parts, codes.magnitudes, strict=True)):
        negative = b.sext(b.icmp_signed("<", part, constant(part.type, 0)), part.type)
        store(b, plus(b, address, step * index), magnitude)
        store(b, plus(b, address, 64 + step * index), negative)


def _magnitude(b: ir.IRBuilder, part: ir.Value) -> ir.Value:
    return call(b, f"llvm.abs.v{part.type.count}i8", part.type, [part, ir.IntType(1)(0)])


class Sum:
    """A sum in int32 of products of codes up to ``largest`` with signed bytes, a lane for each row of weights of a
    strip; ``start`` is as many int32 or None."""

    def __init__(self, b: ir.IRBuilder, start: ir.Value | None, largest: int) -> None:
        self.b, self.level = b, target.level()
        kind = ir.VectorType(I32, self.level.lanes)
        self.sums = None if start is None else [b.bitcast(part, kind) for part in cut(b, start, self.level.lanes)]
        self.most = self.level.in_int16(largest)
        self.narrow: list[list[ir.Value]] = []  # sums in int16, a list for each register of codes
        self.count = 0

    def add(self, codes: Codes, four: ir.Value) -> None:
        """Add the products with four signed bytes that are the same in every lane (int32 x 16)."""
        x = cut(self.b, four, self.level.lanes)[0]
        if self.level.dot is None:
            self._add_pairs(codes, x)
            return
        zero = constant(ir.VectorType(I32, self.level.lanes), 0)
        sums = self.sums or [zero] * len(codes.parts)
        self.sums = [self.level.dot(self.b, s, part, x) for s, part in zip(sums, codes.parts, strict=True)]

    def add_negative(self, codes: FlippedCodes) -> None:
        """Add the magnitudes of negative codes, with a minus."""
        assert self.level.pairs is not None
        halves = zip(codes.magnitudes, codes.flips, strict=True)
        self._accumulate([self.level.pairs(self.b, magnitude, flip) for magnitude, flip in halves])

    def fence(self) -> None:
        """Have all that was added so far computed before anything else is loaded."""
        if self.narrow:
            self.narrow = [[fence(self.b, word) for word in words] for words in self.narrow]
        else:
            assert self.sums is not None
            self.sums = [fence(self.b, part) for part in self.sums]

    def total(self) -> ir.Value:
        """Return the sum, int32 for each row of weights."""
        if self.narrow:
            self._widen()
        assert self.sums is not None
        return join(self.b, self.sums)

    def _add_pairs(self, codes: Codes, x: ir.Value) -> None:
        self._accumulate([self._pairs(codes, index, x) for index in range(len(codes.parts))])

    def _accumulate(self, products: list[list[ir.Value]]) -> None:
        if self.narrow:
            products = [
                [self._ordered(self.b.add(old, new)) for old, new in zip(before, after, strict=True)]
                for before, after in zip(self.narrow, products, strict=True)
            ]
        self.narrow, self.count = products, self.count + 1
        if self.count == self.most:
            self._widen()

    def _pairs(self, codes: Codes, index: int, x: ir.Value) -> list[ir.Value]:
        assert self.level.pairs is not None
        part = codes.parts[index]
        if not codes.magnitudes:
            return self.level.pairs(self.b, part, x)
        assert self.level.with_sign is not None
        signed = self.b.xor(x, codes.flips[index]) if codes.flips else self.level.with_sign(self.b, x, part)
        return self.level.pairs(self.b, codes.magnitudes[index], signed)

    def _widen(self) -> None:
        assert self.level.widen is not None
        wide = [self.level.widen(self.b, words) for words in self.narrow]
        if self.sums is not None:
            wide = [self._ordered(self.b.add(old, new)) for old, new in zip(self.sums, wide, strict=True)]
        self.sums, self.narrow, self.count = wide, [], 0

    def _ordered(self, x: ir.Value) -> ir.Value:
        """Return ``x`` through an empty assembly: LLVM would add up row after row, and keep all codes on the stack."""
        if not self.level.barrier:
            return x
        return fence(self.b, x, reload=True)


class PairSum:
    """Sums of products of ``lanes`` rows of weights with two rows of activations, two rows of weights in a register of
    2 x 2 int32; ``start``: as many int32, those of both rows of activations in turns, or None."""

    def __init__(self, b: ir.IRBuilder, start: ir.Value | None, lanes: int) -> None:
        self.b, kind = b, ir.VectorType(I32, 4)
        self.sums = [constant(kind, 0)] * (lanes // 2) if start is None else split(b, start, 4)

    def add(self, pairs: list[ir.Value], address: ir.Value) -> None:
        """Add the products of ``pairs_of_rows`` with eight signed bytes of each row of activations."""
        b, matrix, kind = self.b, target.level().matrix, ir.VectorType(I8, 16)
        assert matrix is not None
        x = load(b, address, kind)
        self.sums = [matrix(b, sums, b.bitcast(pair, kind), x) for sums, pair in zip(self.sums, pairs, strict=True)]

    def total(self) -> ir.Value:
        """Return the sums, int32 for each row of weights and in it for each row of activations."""
        return join(self.b, self.sums)


def shuffle(b: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """Return bytes of a table of 16 that is there in each quarter (int32 x 16, or as many as there are indices), by the
    low four bits of each byte."""
    level: Level = target.level()
    kind = ir.VectorType(I32, level.lanes)
    indices = cut(b, index, level.lanes)
    halves = zip(cut(b, table, level.lanes), indices, strict=len(indices) * level.lanes == LANES)
    return join(b, [b.bitcast(level.shuffle(b, part, at), kind) for part, at in halves])


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
        return in_turns(b, level.permute(b, values, high), level.permute(b, values, low))
    both = b.or_(high, b.shl(low, constant(wide, 16)))
    return level.permute(b, values, b.bitcast(both, ir.VectorType(I16, 2 * _CODES)))


def _store_shuffled(b: ir.IRBuilder, level: Level, address: ir.Value, codes: ir.Value, values: ir.Value) -> None:
    """Look up each byte of the values in a table of its own, and join the bytes again.

    Registers are shuffled in pieces of 16 bytes. Each takes every so many of the codes in fours, so that joined values
    of all pieces follow one another.
    """
    width = _width(values)
    pieces = min(level.lanes, 2 * _CODES // 4) // 4
    indices = in_turns(b, b.lshr(codes, constant(codes.type, 4)), b.and_(codes, constant(codes.type, 15)))
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
    width, slot = _width(values), alloca_once(b, values.type)
    b.store(values, slot)
    table, kind = b.ptrtoint(slot, I64), ir.IntType(8 * width)
    for k in range(_CODES):
        code = b.zext(b.extract_element(codes, I32(k)), I64)
        for half, index in enumerate((b.lshr(code, I64(4)), b.and_(code, I64(15)))):
            value = load(b, b.add(table, b.mul(index, I64(width))), kind)
            store(b, plus(b, address, width * (2 * k + half)), value)


def _width(values: ir.Value) -> int:
    """Bytes of a value: 4 where there are 16, 2 where 16 are there twice."""
    return 64 // int(values.type.count)
