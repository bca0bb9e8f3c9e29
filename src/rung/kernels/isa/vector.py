"""Make LLVM emitters callable in compiled functions: the vector types Numba sees and ``instruction``.

An emitter is a plain function ``emit(builder, *llvm_values) -> llvm value``. ``@instruction(result, *arguments)``
makes it callable in compiled functions; its ``.emit`` stays there for longer emitters, which unroll in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic

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

    def typing(self, *kinds: types.Type) -> tuple[Any, Callable[..., Any]]:
        """The signature, whose arguments Numba converts to, and the code generator."""

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
            result_value = self.emit(builder, *values)
            return context.get_dummy_value() if result_value is None else result_value

        return self.result(*self.arguments), generate


def instruction(result: types.Type, *arguments: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Makes an emitter callable in compiled functions; the intrinsic carries it as ``.emit``."""

    def name(emit: Callable[..., Any]) -> Any:
        wrapped = Instruction(emit, result, arguments)

        def define(typing_context: Any, *kinds: types.Type) -> Any:
            return wrapped.typing(*kinds)

        names = list(inspect.signature(emit).parameters)[1:]
        assert len(names) == len(arguments), f"{emit.__name__}: {len(names)} parameters, {len(arguments)} types"
        define.__name__, define.__doc__ = emit.__name__, emit.__doc__
        define.__qualname__, define.__module__ = emit.__qualname__, emit.__module__
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(each, kind) for each in ("typing_context", *names)]
        define.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        intrinsic_function: Any = intrinsic(define)
        intrinsic_function.emit = emit
        return intrinsic_function

    return name
