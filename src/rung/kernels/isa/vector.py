"""Define what the instruction sets share: the vector types Numba sees and ``instruction``, which names an LLVM emitter.

An emitter is a plain function ``emit(builder, *llvm_values) -> llvm value``. ``@instruction(result, *arguments)``
makes it callable in compiled functions; its ``.emit`` stays there for longer emitters, which unroll in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core import types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic

LLVM_VERSION: tuple[int, ...] = binding.llvm_version_info

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()

#: Addresses and sizes are 64-bit integers in compiled functions.
INT = types.int64
FLOAT = types.float32
VOID = types.void


class VectorType(types.Type):
    """The Numba type of a SIMD register; opaque, passed and returned by value."""

    def __init__(self, element: ir.Type, lanes: int) -> None:
        self.llvm = ir.VectorType(element, lanes)
        super().__init__(name=f"simd<{lanes} x {element}>")


@register_default(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, kind.llvm)


class Instruction:
    """An intrinsic of Numba beside the emitter it was made of."""

    def __init__(self, emit: Callable[..., Any], result: types.Type, arguments: tuple[types.Type, ...]) -> None:
        self.emit, self.result, self.arguments = emit, result, arguments

    def typing(self, *given: types.Type) -> tuple[Any, Callable[..., Any]]:
        """The signature, whose arguments Numba converts to, and the code generator."""

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
            made = self.emit(builder, *values)
            return context.get_dummy_value() if made is None else made

        return self.result(*self.arguments), generate


def instruction(result: types.Type, *arguments: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Makes an emitter callable in compiled functions; the intrinsic carries it as ``.emit``."""

    def name(emit: Callable[..., Any]) -> Any:
        made = Instruction(emit, result, arguments)

        def define(typing_context: Any, *given: types.Type) -> Any:
            return made.typing(*given)

        names = list(inspect.signature(emit).parameters)[1:]
        assert len(names) == len(arguments), f"{emit.__name__}: {len(names)} parameters, {len(arguments)} types"
        define.__name__, define.__doc__ = emit.__name__, emit.__doc__
        define.__qualname__, define.__module__ = emit.__qualname__, emit.__module__
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(each, kind) for each in ("typing_context", *names)]
        define.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        made_intrinsic: Any = intrinsic(define)
        made_intrinsic.emit = emit
        return made_intrinsic

    return name


# ---- emitters that every instruction set uses


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


def plus(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """``address`` plus a constant number of bytes."""
    return b.add(address, I64(offset)) if offset else address
