"""Hold what one forward pass of any module does, found out without weights: ``rung.trace(module, *inputs)``.

The pass runs on torch's meta device, where tensors have shapes and no values, under a dispatch mode that sees every
operation. So a module of any size is traced in about the time that its Python takes.
"""

from __future__ import annotations

import linecache
import math
import sys
import traceback
import weakref
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from rung.core.errors import CannotTrace
from rung.core.value import Value
from rung.core.version import PACKAGE
from rung.run.torch_private import TorchDispatchMode, tree_leaves, tree_map

#: Folders whose frames are not the traced program's.
_OURS = (str(Path(torch.__file__).parent), str(PACKAGE / "run"), str(PACKAGE / "simulation"))
_GROUPED = getattr(torch.ops.aten, "_grouped_mm", None)  # which torch has from 2.8 on
_FLOPS = {
    **flop_registry,
    _GROUPED: lambda a, b, *more, out_val, **named: 2 * out_val.numel() * a.shape[-1],
}
_SDPA = torch.nn.functional.scaled_dot_product_attention
_ATTENDED = ("query", "key", "value")
_TO_PYTHON = (torch.Tensor.tolist, torch.Tensor.numpy)
_ELSEWHERE = (torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.xpu)
#: Elements up to which tensors that depend on no weight are computed: positions and masks, on which modules decide.
_SMALL = 2**16


@dataclass(frozen=True)
class Operation(Value):
    """All calls of one operation of torch: how many, their floating-point operations, and bytes read and written.

    Only matrix products, convolutions and attention count floating-point operations (a multiplication and an addition
    are two, by ``torch.utils.flop_counter``). Views move no bytes.
    """

    name: str
    calls: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Trace(Value):
    """One forward pass without gradients. Bytes are those of the dtypes that the module and its inputs have.

    ``operations`` are sorted by floating-point operations, then bytes. ``peak_activations`` is the most bytes alive at
    once of what the pass makes, its inputs and the weights not counted; ``outputs`` are those of its result.
    Attention through ``scaled_dot_product_attention`` is taken to keep no scores, as the fused kernels do.
    """

    operations: tuple[Operation, ...]
    parameters: int
    weight_bytes: int
    peak_activations: int
    outputs: int

    @property
    def calls(self) -> int:
        """Number of operations."""
        return sum(operation.calls for operation in self.operations)

    @property
    def flops(self) -> int:
        """Floating-point operations of matrix products, convolutions and attention."""
        return sum(operation.flops for operation in self.operations)

    @property
    def bytes(self) -> int:
        """Bytes read and written, each operation for itself: what a device without caches would move."""
        return sum(operation.bytes for operation in self.operations)


def trace(module: torch.nn.Module, *inputs: Any, **named: Any) -> Trace:
    """Traces ``module(*inputs, **named)``; neither the module nor the inputs change, and no weight is computed with.

    Weights and inputs may be real or on the meta device; tokens and masks keep their values, and what is made of them
    alone is computed while it is small. Raises ``CannotTrace`` with the line where the module decides
    something on the values of tensors, or calls an operation of which torch knows no shapes; whatever else the module
    raises goes on as it is.
    """
    return traced(module, *inputs, **named)[0]


def traced(module: torch.nn.Module, *inputs: Any, **named: Any) -> tuple[Trace, Any]:
    """The trace, and the result of the pass on the meta device; see ``trace``."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    empty = {name: _prepared(value) for name, value in weights.items()}
    arguments, options = tree_map(_prepared, (inputs, named))
    watch = _Watch((*empty.values(), *_tensors((arguments, options))))
    try:
        with torch.no_grad(), watch, _Functions(watch):
            result = torch.func.functional_call(module, empty, arguments, options)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if "meta tensor" not in str(error) and "meta device" not in str(error):
            raise
        raise _cannot(f"{type(module).__name__} needs the values of tensors", _where(error)) from error
    own = {id(value): value for value in module.parameters()}
    found = Trace(
        operations=watch.operations(),
        parameters=sum(value.numel() for value in own.values()),
        weight_bytes=sum(_bytes(value) for value in {id(value): value for value in weights.values()}.values()),
        peak_activations=watch.peak,
        outputs=sum(_bytes(value) for value in _tensors(result)),
    )
    return found, result


def _empty(value: Any) -> Any:
    """A tensor without values in the place of one with them."""
    return torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) and not value.is_meta else value


def _prepared(value: Any) -> Any:
    """A weight or an input as the pass gets it: small whole numbers (tokens, positions, masks) keep their values."""
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.numel() > _SMALL):
        return _empty(value)
    return value.cpu() if isinstance(value, torch.Tensor) and not value.is_meta else value


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


class _Watch(TorchDispatchMode):
    """Counts operations, and the bytes of storages from when they are made to when they are freed."""

    def __init__(self, inputs: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.peak = 0
        self._alive = 0
        self._known = weakref.WeakSet(value.untyped_storage() for value in inputs)
        self._found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = _tensors((args, kwargs))
        result = self._call(func, args, kwargs, known=not any(value.is_meta for value in before))
        after = _tensors(result)
        count = _FLOPS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)  # of operators made since
        flops = int(count(*args, **kwargs, out_val=result)) if count else 0
        moved = 0 if _is_alias(func, before, after) else sum(map(_bytes, before)) + sum(map(_bytes, after))
        self.count(func.overloadpacket.__name__, flops, moved)
        for value in after:
            self._hold(value.untyped_storage())
        return result

    @staticmethod
    def _call(func: Any, args: Any, kwargs: dict[str, Any], *, known: bool) -> Any:
        """The result: with values where all of its inputs are ``known`` and it is small, else its shapes."""
        if not known and torch.Tag.data_dependent_output in func.tags:
            raise _cannot(f"{func.overloadpacket.__name__} asks for the value of a tensor", _user_frame())
        values = bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))
        if not (known and (values or func.is_view or func._schema.is_mutable)):
            try:
                shapes = func(*tree_map(_empty, args), **_on("meta", tree_map(_empty, kwargs)))
            except NotImplementedError as error:
                raise _cannot(f"torch cannot tell the shapes that {func} gives", _user_frame()) from error
            if not known or any(value.numel() > _SMALL for value in _tensors(shapes)):
                return shapes
        return func(*args, **_on("cpu", kwargs))

    def count(self, name: str, flops: int, moved: int) -> None:
        """Adds a call of an operation."""
        totals = self._found[name]
        totals[0] += 1
        totals[1] += flops
        totals[2] += moved

    def operations(self) -> tuple[Operation, ...]:
        """Return the counted operations, the most expensive first."""
        found = (Operation(name, *totals) for name, totals in self._found.items())
        return tuple(sorted(found, key=lambda one: (-one.flops, -one.bytes, one.name)))

    def _hold(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._alive -= size


def _is_alias(func: Any, before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Return whether an operation only looks at its inputs in another shape."""
    storages = {value.untyped_storage()._cdata for value in before}
    return not func._schema.is_mutable and all(value.untyped_storage()._cdata in storages for value in after)


class _Functions(TorchFunctionMode):
    """Hold what must be seen before torch takes it apart: attention, devices that are not here, values as Python's
    own."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            return self._attention(*args[:3], **{name: kwargs[name] for name in _ATTENDED if name in kwargs})
        if func in _TO_PYTHON and args[0].is_meta:
            raise _cannot(f"{func.__name__} asks for the values of a tensor", _user_frame())
        if func in _ELSEWHERE:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(_here(value) for value in args)
        return func(*args, **{key: _here(value) if key == "device" else value for key, value in kwargs.items()})

    def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Fused attention: on the meta device torch would hold its scores."""
        result = query.new_empty((*query.shape[:-1], value.shape[-1]))
        rows = math.prod(query.shape[:-1])
        flops = 2 * rows * key.shape[-2] * (key.shape[-1] + value.shape[-1])
        moved = sum(map(_bytes, (query, key, value, result)))
        self._watch.count("scaled_dot_product_attention", flops, moved)
        return result


def _on(device: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation that makes a tensor, to make it on that device."""
    return {**kwargs, "device": torch.device(device)} if kwargs.get("device") else kwargs


def _here(value: Any) -> Any:
    """The meta device in the place of any other; what is no device as it is."""
    return "meta" if isinstance(value, (str, torch.device)) else value


def _cannot(cause: str, where: tuple[str, int, str] | None) -> CannotTrace:
    """The error with the line of the module that is to blame."""
    facts = []
    if where is not None:
        file, line, function = where
        facts = [f"{file}:{line}, in {function}: {linecache.getline(file, line).strip()}"]
    return CannotTrace(f"{cause}, and a trace has shapes only.", facts)


def _user_frame() -> tuple[str, int, str] | None:
    """The innermost line that is neither torch's nor rung's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_OURS, "<")):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _where(error: BaseException) -> tuple[str, int, str] | None:
    """The same of an error on its way out."""
    lines = [s for s in traceback.extract_tb(error.__traceback__) if not s.filename.startswith((*_OURS, "<"))]
    return (lines[-1].filename, lines[-1].lineno or 0, lines[-1].name) if lines else None
