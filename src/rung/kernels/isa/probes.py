"""Prove sets of instructions, and the level that kernels use: tiny kernels, compiled as all are and compared by value.

An instruction that the JIT's target lacks aborts the process while compiling, one that the processor lacks ends it
with an illegal instruction: call ``check`` in a child process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit

from rung.hardware import cpu_features
from rung.hardware.families.cpu import X86
from rung.kernels.cpu import target
from rung.kernels.isa.emit import F16, F32, I8, I16, I32, I64, LLVM_VERSION, call, load, narrow, store, widen
from rung.kernels.isa.products import Codes, Sum, broadcast, shuffle
from rung.kernels.isa.vector import INT, VOID, instruction


class _BFloat(ir.types.Type):
    """bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


def _kernel(emit: Callable[..., Any]) -> Any:
    """A compiled function (out, x, y, z: addresses) around one instruction."""
    compiled = instruction(VOID, INT, INT, INT, INT)(emit)

    @njit("void(int64, int64, int64, int64)")
    def kernel(out: int, x: int, y: int, z: int) -> None:
        compiled(out, x, y, z)

    return kernel


def _of(name: str, result: ir.Type, *arguments: ir.Type, cast: tuple[ir.Type, ...] = ()) -> Any:
    """A kernel that loads the arguments from x, y, z, calls the LLVM intrinsic and stores the result."""

    def emit(b: ir.IRBuilder, out: ir.Value, x: ir.Value, y: ir.Value, z: ir.Value) -> None:
        values = [load(b, address, kind) for address, kind in zip((x, y, z), arguments, strict=False)]
        if cast:
            values = [b.bitcast(value, kind) for value, kind in zip(values, cast, strict=True)]
        store(b, out, call(b, name, result, values))

    return _kernel(emit)


def _vector(kind: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(kind, lanes)


_RANDOM = np.random.default_rng(7)
_BYTES = _RANDOM.integers(0, 256, 64, dtype=np.uint8)
_SIGNED = _RANDOM.integers(-128, 128, 64, dtype=np.int8)
_FLOATS = _RANDOM.standard_normal(16).astype(np.float32)
_ORDER16 = _RANDOM.permutation(16).astype(np.int32)


def _run(kernel: Any, out: np.ndarray, *inputs: np.ndarray) -> np.ndarray:
    arrays = [np.ascontiguousarray(array) for array in inputs]
    arrays += [out] * (3 - len(arrays))
    kernel(out.ctypes.data, *(array.ctypes.data for array in arrays))
    return out


def _dot(lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and the right output of vpdpbusd: int32 sums of four unsigned times signed bytes, added to a
    start."""
    start = np.arange(lanes, dtype=np.int32) * 1000
    kind = _vector(I32, lanes)
    operand = _vector(I8, 4 * lanes) if LLVM_VERSION >= (21,) else kind
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    kernel = _of(name, kind, kind, kind, kind, cast=(kind, operand, operand))
    u, s = _BYTES[: 4 * lanes], _SIGNED[: 4 * lanes]
    products = u.astype(np.int32).reshape(-1, 4) * s.astype(np.int32).reshape(-1, 4)
    return _run(kernel, np.zeros(lanes, np.int32), start, u, s), start + products.sum(1, dtype=np.int32)


def _avx() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(F32, 8)
    a, b = _FLOATS[:8], _FLOATS[8:]
    return _run(_of("llvm.x86.avx.max.ps.256", kind, kind, kind), np.zeros(8, np.float32), a, b), np.maximum(a, b)


def _ssse3() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(I8, 16)
    index = (_BYTES[:16] & 15).astype(np.int8)
    kernel = _of("llvm.x86.ssse3.pshuf.b.128", kind, kind, kind)
    return _run(kernel, np.zeros(16, np.int8), _SIGNED[:16], index), _SIGNED[:16][index]


def _avx2() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(I8, 32)
    index = (_BYTES[:32] & 15).astype(np.int8)
    kernel = _of("llvm.x86.avx2.pshuf.b", kind, kind, kind)
    lanes = [_SIGNED[at : at + 16][index[at : at + 16]] for at in (0, 16)]
    return _run(kernel, np.zeros(32, np.int8), _SIGNED[:32], index), np.concatenate(lanes)


def _f16c() -> tuple[np.ndarray, np.ndarray]:
    def emit(b: ir.IRBuilder, out: ir.Value, x: ir.Value, y: ir.Value, z: ir.Value) -> None:
        store(b, out, b.fpext(load(b, x, _vector(F16, 8)), _vector(F32, 8)))

    kernel, halves = _kernel(emit), _FLOATS[:8].astype(np.float16)
    _expect(kernel, "vcvtph2ps")
    return _run(kernel, np.zeros(8, np.float32), halves), halves.astype(np.float32)


def _fma() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(F32, 8)
    kernel = _of("llvm.fma.v8f32", kind, kind, kind, kind)
    _expect(kernel, "vfmadd")
    a, b, c = (_FLOATS[at : at + 8] for at in (0, 4, 8))
    exact = a.astype(np.float64) * b + c
    return _run(kernel, np.zeros(8, np.float32), a, b, c), exact.astype(np.float32)


def _avx512f() -> tuple[np.ndarray, np.ndarray]:
    kernel = _of("llvm.x86.avx512.permvar.sf.512", _vector(F32, 16), _vector(F32, 16), _vector(I32, 16))
    return _run(kernel, np.zeros(16, np.float32), _FLOATS, _ORDER16), _FLOATS[_ORDER16]


def _avx512bw() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(I16, 32)
    words, order = _BYTES.view(np.int16), (_BYTES[:32] & 31).astype(np.int16)
    kernel = _of("llvm.x86.avx512.permvar.hi.512", kind, kind, kind)
    return _run(kernel, np.zeros(32, np.int16), words, order), words[order]


def _avx512vl() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(I16, 16)
    words = _BYTES[:32].view(np.int16)
    kernel = _of("llvm.x86.avx512.permvar.hi.256", kind, kind, kind)
    return _run(kernel, np.zeros(16, np.int16), words, _ORDER16.astype(np.int16)), words[_ORDER16]


def _vbmi() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(I8, 64)
    kernel = _of("llvm.x86.avx512.permvar.qi.512", kind, kind, kind)
    order = (_BYTES & 63).astype(np.int8)
    return _run(kernel, np.zeros(64, np.int8), _SIGNED, order), _SIGNED[order]


def _bf16() -> tuple[np.ndarray, np.ndarray]:
    kind, operand = _vector(F32, 16), _vector(_BFloat(), 32)
    kernel = _of(
        "llvm.x86.avx512bf16.dpbf16ps.512",
        kind,
        kind,
        _vector(I32, 16),
        _vector(I32, 16),
        cast=(kind, operand, operand),
    )
    # Small whole numbers are exact in bfloat16, and so are the sums of their products in float32.
    a, b = (_RANDOM.integers(-8, 9, 32).astype(np.float32) for _ in range(2))
    halves = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in (a, b)]
    expected = (a * b).reshape(-1, 2).sum(1)
    return _run(kernel, np.zeros(16, np.float32), np.zeros(16, np.float32), *halves), expected.astype(np.float32)


def _fp16() -> tuple[np.ndarray, np.ndarray]:
    kind = _vector(F16, 32)

    def emit(b: ir.IRBuilder, out: ir.Value, x: ir.Value, y: ir.Value, z: ir.Value) -> None:
        store(b, out, b.fadd(load(b, x, kind), load(b, y, kind)))

    kernel = _kernel(emit)
    _expect(kernel, "vaddph")
    a, b = (_RANDOM.integers(-64, 65, 32).astype(np.float16) for _ in range(2))
    return _run(kernel, np.zeros(32, np.float16), a, b), a + b


#: What proves a capability: each gives what the kernel computed and what it must.
CHECKS: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], ...]] = {
    "isa.ssse3": (_ssse3,),
    "isa.avx": (_avx,),
    "isa.f16c": (_f16c,),
    "isa.fma": (_fma,),
    "isa.avx2": (_avx2, _fma, _f16c),
    "isa.avx_vnni": (lambda: _dot(8),),
    "isa.avx512f": (_avx512f, _avx512bw, _avx512vl),
    "isa.avx512_vnni": (lambda: _dot(16),),
    "isa.avx512_vbmi": (_vbmi,),
    "isa.avx512_bf16": (_bf16,),
    "isa.avx512_fp16": (_fp16,),
}


def _wrong_sums(largest: int, bytewide: bool) -> str:
    """Compare sums of products of codes up to ``largest`` with int64: eight vectors of random and of extreme codes."""
    signed = bytewide and target.level().signed

    def emit(b: ir.IRBuilder, out: ir.Value, codes: ir.Value, x: ir.Value, z: ir.Value) -> None:
        total = Sum(b, None, largest)
        for index in range(8):
            vector = load(b, b.add(codes, I64(64 * index)), _vector(I32, 16))
            total.add(Codes(b, vector, bytewide), broadcast(b, x, 4 * index))
        store(b, out, total.total())

    kernel = _kernel(emit)
    stored = _RANDOM.integers(0, 256 if bytewide else largest + 1, (3, 8, 16, 4), dtype=np.uint8)
    x = _RANDOM.integers(-127, 128, (3, 8, 4), dtype=np.int8)
    stored[1:], x[1], x[2] = (255 if bytewide else largest), 127, -127
    stored[2] = 0 if bytewide else largest
    for each, activations in zip(stored, x, strict=True):
        got = _run(kernel, np.zeros(16, np.int32), each, activations)
        expected = ((each.astype(np.int64) - 128 * signed) * activations[:, None].astype(np.int64)).sum(axis=(0, 2))
        if not np.array_equal(got, expected):
            return f"sums of products of codes up to {largest} are wrong"
    return ""


def _wrong_shuffle() -> str:
    def emit(b: ir.IRBuilder, out: ir.Value, table: ir.Value, index: ir.Value, z: ir.Value) -> None:
        kind = _vector(I32, 16)
        store(b, out, shuffle(b, load(b, table, kind), load(b, index, kind)))

    table, index = np.tile(_BYTES[:16], 4), _BYTES & 15
    got = _run(_kernel(emit), np.zeros(64, np.uint8), table, index)
    return "" if np.array_equal(got, table[index]) else "bytes of a table are wrong"


def _wrong_halves() -> str:
    def widened(b: ir.IRBuilder, out: ir.Value, x: ir.Value, y: ir.Value, z: ir.Value) -> None:
        store(b, out, widen(b, load(b, x, _vector(F16, 16))))

    def narrowed(b: ir.IRBuilder, out: ir.Value, x: ir.Value, y: ir.Value, z: ir.Value) -> None:
        store(b, out, narrow(b, load(b, x, _vector(F32, 16))))

    edges = [0.0, -0.0, 2.0**-24, -(2.0**-14), 65504.0, np.inf, -np.inf, 1.0]
    exact = np.array([*edges, *_FLOATS[:8]]).astype(np.float16)
    wide = _run(_kernel(widened), np.zeros(16, np.float32), exact)
    between = np.array([65519.0, 65520.0, 2.0**-25, 2.0**-25 * 1.01, 2.0**-14 * 0.9999, *_FLOATS[:11]], np.float32)
    with np.errstate(over="ignore"):
        expected = between.astype(np.float16)
    halves = _run(_kernel(narrowed), np.zeros(16, np.float16), between)
    right = np.array_equal(wide, exact.astype(np.float32)) and np.array_equal(halves, expected)
    return "" if right else "conversions of float16 are wrong"


_WRONG: tuple[Callable[[], str], ...] = (
    lambda: _wrong_sums(15, False),
    lambda: _wrong_sums(63, False),
    lambda: _wrong_sums(128, True),
    _wrong_shuffle,
    _wrong_halves,
)


def check(name: str) -> str:
    """Compiles and runs the kernel of one capability; empty when every value is right, else a sentence.

    ``isa.kernels`` is what differs between levels, at the one that is compiled for.

    Raises ``LookupError`` when the compiler's target is without the instruction.
    """
    if name == "isa.kernels":
        return next(filter(None, (wrong() for wrong in _WRONG)), "")
    missing = cpu_features.llvm_names(frozenset(X86[name])) - target.features()
    if missing:
        raise LookupError(f"the compiler's target has no {', '.join(sorted(missing))}")
    for kernel in CHECKS[name]:
        got, expected = kernel()
        if not np.array_equal(got, expected):
            at = int(np.flatnonzero(got != expected)[0])
            return f"wrong numbers: lane {at} is {got[at]}, not {expected[at]}"
    return ""


def _expect(kernel: Any, mnemonic: str) -> None:
    """LLVM takes a road around an instruction that its target lacks; then the target cannot have it."""
    (text,) = kernel.inspect_asm().values()
    if mnemonic not in text:
        raise LookupError(f"the compiler's target has no {mnemonic}")
