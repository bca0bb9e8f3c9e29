"""A row of 16 pixels meets a splat: forward, and the way back for gradients; in plain LLVM vectors.

A splat is a record of float32 at ``RECORD``'s places. The state of a row is six vectors: what is left of the light
behind (below zero where the pixel takes no more), red, green, blue, depth, and the number after the last splat taken.
"""

from __future__ import annotations

from llvmlite import ir

from rung.kernels.isa import generic as v
from rung.kernels.isa.emit import F32, constant, load, plus, splat, store
from rung.kernels.isa.vector import FLOAT, INT, VOID, instruction

_NAMES = "x y half_xx xy half_yy opacity red green blue depth reach_x reach_y pixel_x pixel_y unused unused_too"
#: Where a splat's values are, in float32: the fraction of its center's pixel (the pixel itself at the end, so that
#: offsets are exact far from the corner), half xx, xy and half yy of its conic, opacity, color, depth, its reach.
RECORD = tuple(_NAMES.split())
#: Vectors of a row's state, and of the gradients of what came out: red, green, blue, depth, alpha.
STATE, OUTPUTS = 6, 5

_MOST, _LEAST, _LEFT = 0.999, 1 / 255, 1e-4  # of the contract in rung.ops.rasterize


def _field(b: ir.IRBuilder, record: ir.Value, name: str) -> ir.Value:
    return splat(b, load(b, plus(b, record, 4 * RECORD.index(name)), F32), v.LANES)


def _any(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    bits = b.bitcast(mask, ir.IntType(v.LANES))
    return b.zext(b.icmp_unsigned("!=", bits, ir.IntType(v.LANES)(0)), ir.IntType(64))


def _alpha(b: ir.IRBuilder, record: ir.Value, dx: ir.Value, dy: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The splat's opacity at 16 pixels as it is and held to the most, and where it counts."""
    down = splat(b, dy, v.LANES)
    rest = b.fmul(_field(b, record, "half_yy"), b.fmul(down, down))
    slope = b.fmul(_field(b, record, "xy"), down)
    inner = v.multiply_add.emit(b, _field(b, record, "half_xx"), dx, slope)
    power = v.multiply_add.emit(b, dx, inner, rest)
    raw = b.fmul(_field(b, record, "opacity"), v.exponential.emit(b, b.fneg(power)))
    most = constant(v.F32S, _MOST)
    alpha = b.select(b.fcmp_ordered("<", raw, most), raw, most)
    counts = b.fcmp_ordered(">=", power, constant(v.F32S, 0.0))
    return raw, alpha, b.and_(counts, b.fcmp_ordered(">=", alpha, constant(v.F32S, _LEAST)))


@instruction(INT, INT, INT, v.f32x16, FLOAT, FLOAT)
def composite_row(b, state, record, dx, dy, number):
    """Lays a splat behind those before it; ``number`` is that after its own. Whether any pixel takes more."""
    addresses = [plus(b, state, v.BYTES * index) for index in range(STATE)]
    left = v.load.emit(b, addresses[0])
    _, alpha, counts = _alpha(b, record, dx, dy)
    counts = b.and_(counts, b.fcmp_ordered(">", left, constant(v.F32S, 0.0)))
    after = b.fmul(left, b.fsub(constant(v.F32S, 1.0), alpha))
    enough = b.fcmp_ordered(">", after, constant(v.F32S, _LEFT))
    taken = b.and_(counts, enough)
    weight = b.select(taken, b.fmul(alpha, left), constant(v.F32S, 0.0))
    for address, name in zip(addresses[1:5], ("red", "green", "blue", "depth"), strict=True):
        store(b, address, v.multiply_add.emit(b, weight, _field(b, record, name), v.load.emit(b, address)))
    closed = b.select(counts, b.fneg(left), left)
    left = b.select(taken, after, closed)
    store(b, addresses[0], left)
    store(b, addresses[5], b.select(taken, splat(b, number, v.LANES), v.load.emit(b, addresses[5])))
    return _any(b, b.fcmp_ordered(">", left, constant(v.F32S, 0.0)))


@instruction(INT, INT, INT, INT, INT, v.f32x16, FLOAT, FLOAT, INT)
def blame_row(b, state, behind, gradient, record, dx, dy, number, out):
    """Takes a splat off again, last first, and tells what it changed.

    ``behind`` holds what is left before the splats taken off so far and their loss (two vectors), ``gradient`` the
    loss's derivatives by the outputs. Writes the splat's weight and the derivative by its power to ``out``; whether
    any pixel had taken it.
    """
    left, loss = v.load.emit(b, behind), v.load.emit(b, plus(b, behind, v.BYTES))
    raw, alpha, counts = _alpha(b, record, dx, dy)
    last = v.load.emit(b, plus(b, state, 5 * v.BYTES))
    counts = b.and_(counts, b.fcmp_ordered("<=", splat(b, number, v.LANES), last))
    before = b.select(counts, b.fdiv(left, b.fsub(constant(v.F32S, 1.0), alpha)), left)
    none = constant(v.F32S, 0.0)
    value = v.load.emit(b, plus(b, gradient, 4 * v.BYTES))
    for index, name in enumerate(("red", "green", "blue", "depth")):
        upstream = v.load.emit(b, plus(b, gradient, v.BYTES * index))
        value = v.multiply_add.emit(b, upstream, _field(b, record, name), value)
    rise = b.fsub(value, loss)
    store(b, behind, before)
    store(b, plus(b, behind, v.BYTES), b.select(counts, v.multiply_add.emit(b, alpha, rise, loss), loss))
    store(b, out, b.select(counts, b.fmul(alpha, before), none))
    free = b.and_(counts, b.fcmp_ordered("<=", raw, constant(v.F32S, _MOST)))
    slope = b.fneg(b.fmul(alpha, b.fmul(before, rise)))
    store(b, plus(b, out, v.BYTES), b.select(free, slope, none))
    return _any(b, counts)


@instruction(VOID, INT, INT)
def start_behind(b, behind, state):
    """Store the state that ``blame_row`` begins a row with: the transmittance at its end, and no loss."""
    left = v.load.emit(b, state)
    store(b, behind, b.select(b.fcmp_ordered("<", left, constant(v.F32S, 0.0)), b.fneg(left), left))
    store(b, plus(b, behind, v.BYTES), constant(v.F32S, 0.0))
