"""Every operation while a simulation is in force: devices that mix, refusals, memory, and where results lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rung.run.torch_private import DispatchKey, DispatchKeySet, has_kernel
from rung.simulation import refusals
from rung.simulation.defects import Defect
from rung.simulation.dispatch.dispatch_hook import is_view, observe
from rung.simulation.simulation import HOST, Card, Host, World
from rung.simulation.torch_api import placement
from rung.simulation.torch_api.generators import check_generator
from rung.simulation.torch_api.placement import UNDECIDED, Mark, claim, wanting, where

_MATMUL = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "_int_mm", "_scaled_mm",
    "_addmm_activation", "linear", "matmul",
)  # fmt: skip
_SIZE_FIRST = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "empty_strided")
_SIZE_SECOND = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
_SAME_SIZE = ("_to_copy", "clone", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
#: Operations that take tensors of two devices: copies, and those whose indices or lengths may stay on the host.
_MIXES = (
    "copy_", "_to_copy", "set_", "lift_fresh", "index", "index_put", "index_put_", "_index_put_impl_",
    "_unsafe_index", "record_stream", "_pack_padded_sequence", "_pin_memory", "resize_as_",
)  # fmt: skip
#: Those whose indices may stay on the host, but not lie on a card where the tensor does not.
_INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
#: Operations made of others that a GPU does in one kernel, or in none, without memory in between. In inference mode
#: they come whole; all others are taken apart.
_WHOLE = (
    "linear", "reshape", "contiguous", "flatten", "unflatten", "to", "type_as", "softmax", "log_softmax", "dropout",
    "chunk", "split", "expand_as", "view_as", "layer_norm", "rms_norm", "group_norm",
)  # fmt: skip
_NEVER_KERNELS = ("empty", "new_empty", "_to_copy", "copy_", "set_", "lift")
_UNKNOWN: Any = object()


class Operation:
    """One operation: ``kind`` as capabilities and defects name it, and what its schema says.

    ``view``: the result shares the memory of an argument. ``fresh``: it is new memory. ``whole``: made of others, but
    a single kernel on a card; ``composite``: made of others; ``custom``: of another library, made of any.
    ``launches``: it runs a kernel. ``defects``: whether the simulation has any.
    """

    def __init__(self, func: Any, *, defects: bool = False) -> None:
        schema = func._schema
        self.name: str = schema.name.split("::")[1]
        self.kind = _kind(self.name)
        self.composite = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
        self.whole = self.composite and self.name in _WHOLE
        self.custom = func.namespace not in ("aten", "prims", "rung")
        self.mixes = self.name in _MIXES
        self.indexes = self.name in _INDEXES
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.arguments = [argument.name for argument in schema.arguments]
        self.sized = self.name in (*_SIZE_FIRST, *_SIZE_SECOND, *_SAME_SIZE)
        shares = is_view(schema)
        self.view = shares and not self.composite and not self.name.startswith("lift")
        self.fresh = any(result.alias_info is None or shares for result in schema.returns)
        #: How many of its results lie on the card; lengths of sequences stay on the host.
        self.kept = 1 if self.name == "_pack_padded_sequence" else None
        self.launches = not (shares or self.name.startswith(_NEVER_KERNELS))
        #: Whether nothing is special about it once its tensors lie on one card.
        self.plain = not (defects or self.composite or self.custom or self.random or self.sized)
        self._failures: dict[tuple[int, torch.dtype], Callable[[], Exception] | None] = {}

    def failure(self, card: Card, dtype: torch.dtype) -> Callable[[], Exception] | None:
        """Return a function that makes the error of this operation in that dtype; None where the card does it."""
        found = self._failures.get((card.index, dtype), _UNKNOWN)
        if found is _UNKNOWN:
            found = self._failures[card.index, dtype] = self._judge(card, dtype)
        result: Callable[[], Exception] | None = found
        return result

    def _judge(self, card: Card, dtype: torch.dtype) -> Callable[[], Exception] | None:
        for defect in self._defects(card, dtype):
            if defect.exception is not None:
                return lambda exception=defect.exception, text=defect.text: exception(text)  # type: ignore[misc]
        return refusals.refusal(card, self.name, self.kind, refusals.DTYPE_NAMES.get(dtype, ""))

    def spoils(self, card: Card, dtype: torch.dtype) -> bool:
        """Return whether a defect makes the results NaN."""
        return self.launches and any(defect.exception is None for defect in self._defects(card, dtype))

    def _defects(self, card: Card, dtype: torch.dtype) -> list[Defect]:
        name = refusals.DTYPE_NAMES.get(dtype, "")
        return [defect for defect in card.world.defects if defect.hits(self.name, self.kind, name)]

    def bytes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """The size of the result where the arguments tell it, so that it is refused before it is made."""
        dtype = kwargs.get("dtype")
        if self.name in _SAME_SIZE:
            result: int | None = int(args[0].numel()) * (dtype or args[0].dtype).itemsize
            return result
        sizes = [a for a in args if isinstance(a, (list, tuple))]
        if not sizes:
            return None
        like = args[0].dtype if self.name in _SIZE_SECOND else torch.get_default_dtype()
        return math.prod(int(n) for n in sizes[0]) * (dtype or like).itemsize

    def argument(self, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The name of the argument that a tensor is; empty when it is none."""
        for name, value in (*zip(self.arguments, args, strict=False), *kwargs.items()):
            if value is tensor or (isinstance(value, (list, tuple)) and any(v is tensor for v in value)):
                return str(name)
        return ""


def _kind(name: str) -> str:
    if name in _MATMUL:
        return "matmul"
    if "attention" in name:
        return "attention"
    return "convolution" if "convolution" in name else "elementwise"


_CPU = torch.device("cpu")
_KEYS = DispatchKeySet(DispatchKey.CPU)
#: Classes of tensors and of what is none, which are known without asking ``isinstance``.
_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_OTHERS = frozenset((int, float, bool, type(None), torch.dtype))
#: The names under which torch's wrappers check arguments, where it is not the operation's own.
_WRAPPERS = {
    "embedding": ("_index_select", {"weight": "self", "indices": "index"}),
    "convolution": ("_convolution", {}),
}
#: Operations whose wrappers name the argument; all others go through iterators, which do not.
_NAMED = (
    "cat", "index_select", "gather", "scatter", "native_layer_norm", "nll_loss_forward", "nll_loss2d_forward",
    *_WRAPPERS,
)  # fmt: skip


class Dispatch:
    """Runs the operations of the threads in which the simulation is in force."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._operations: dict[Any, Operation] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation on the CPU, as the card would."""
        world = self.world
        if world.capturing is not None:
            return world.capturing.note(self.run, func, args, kwargs)
        call = func._op  # both it and its hash are torch's own code, those of ``func`` are Python's
        operation = self._operations.get(call)
        if operation is None:
            operation = self._operations[call] = Operation(func, defects=bool(world.defects))
        if operation.view:
            return call(*args, **kwargs)
        target = world.local.target
        if operation.plain and target is None and not kwargs and (found := _alone(world, args)) is not None:
            card, dtype = found
            self._check(operation, card, dtype)
            result = call(*args)
            if operation.fresh:
                _keep(card, operation, result)
            return result
        return self._general(operation, func, args, kwargs, target)

    def _general(
        self,
        operation: Operation,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        chosen: Card | Host | None,
    ) -> Any:
        """Any operation, wherever its tensors lie and its results are wanted."""
        world, call = self.world, func._op
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            chosen = world.find(device)
            if chosen is None:
                return call(*args, **kwargs)
            kwargs = {**kwargs, "device": _CPU}
        tensors, places, card, together, dtype = _survey(world, (*args, *kwargs.values()) if kwargs else args)
        whole = operation.whole and card and together and chosen is None and not world.defects
        if operation.composite and not whole:  # in inference mode
            return self._by_parts(func, args, kwargs, chosen)
        if card and operation.indexes:
            _check_indices(world, *args[:2])
        if card and not together and not operation.mixes and chosen is None:
            self._settle(operation, card, tensors, places, args, kwargs)
        target = chosen or card or HOST
        computing = card or target
        if operation.random:
            check_generator(world, kwargs.get("generator"), computing)
        if not isinstance(computing, Card):
            result = call(*args, **kwargs)
            if not tensors or all(device_of is UNDECIDED for device_of in places):
                for tensor in _results(result):
                    (placement.leave_open if chosen is None else placement.settle)(tensor)
            return result
        dtype = dtype or kwargs.get("dtype") or torch.get_default_dtype()
        self._check(operation, computing, dtype)
        if operation.custom:
            call = self._inside(func)
        result = _kept(target, call, operation, args, kwargs) if isinstance(target, Card) else call(*args, **kwargs)
        if world.defects and operation.spoils(computing, dtype):
            for tensor in _results(result):
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
        return result

    def _by_parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: Card | Host | None) -> Any:
        """Computes an operation that is made of others: its parts come back to ``run``."""
        if target is None:
            with observe():
                return func.decompose(*args, **kwargs)
        with wanting(self.world, target), observe():
            return func.decompose(*args, **kwargs)

    def _inside(self, func: Any) -> Callable[..., Any]:
        """Another library's operation: what its kernel calls of torch comes back to ``run``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with observe():
                return func._handle.redispatch_boxed(_KEYS, *args, **kwargs)

        return run

    def _check(self, operation: Operation, card: Card, dtype: torch.dtype) -> None:
        """Raises what the real software raises for what the card does not do; takes what cuBLAS takes."""
        if operation.launches and (failure := operation.failure(card, dtype)) is not None:
            raise failure()
        if operation.kind == "matmul":
            card.use_workspace()
        elif operation.kind == "attention":
            refusals.check_attention(card, dtype)

    def _settle(
        self,
        operation: Operation,
        card: Card,
        tensors: list[Tensor],
        places: list[Card | Host],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Takes undecided tensors to the card; raises torch's error for one that lies elsewhere."""
        for index, (tensor, location) in enumerate(zip(tensors, places, strict=True)):
            if location is UNDECIDED:
                claim(card, tensor)
                places[index] = card
            elif location is not card and (location is not HOST or _is_misplaced(tensor)):
                named = operation.kind == "matmul" or operation.name in _NAMED
                name = operation.argument(tensor, args, kwargs) if named else ""
                op, renamed = _WRAPPERS.get(operation.name, (operation.name, {}))
                raise refusals.mixed_devices(card, op, renamed.get(name, name), str(location.torch_device))


def _check_indices(world: World, tensor: Tensor, indices: Iterable[Tensor | None]) -> None:
    """Raises torch's error for an index on a card on which the tensor is not."""
    here = where(world, tensor)
    lying = (where(world, index) for index in indices if index is not None)
    if here is not UNDECIDED and any(isinstance(location, Card) and location is not here for location in lying):
        raise refusals.misplaced_index(here.torch_device)


def _is_misplaced(tensor: Tensor) -> bool:
    """Return whether a tensor of the host may not be with those of a card: numbers may, and so may those of no
    device."""
    return bool(tensor.dim()) and placement.real_device(tensor).type == "cpu"


def _alone(world: World, values: tuple[Any, ...]) -> tuple[Card, torch.dtype] | None:
    """The card on which all tensors among arguments lie, and what is computed in; None where it is not as simple.

    Most operations are decided here, so it asks for nothing twice.
    """
    card = dtype = None
    for value in values:
        kind = value.__class__
        if kind in _OTHERS or (kind is list and value and value[0].__class__ is int):
            continue
        if kind not in _TENSORS:
            return None
        try:
            mark = value.untyped_storage()._rung_mark
        except (NotImplementedError, RuntimeError):  # sparse
            return None
        if mark.__class__ is not Mark or (card is not None and mark.card is not card):
            return None
        card = mark.card
        if dtype is None and value.dtype in refusals.DTYPE_NAMES:
            dtype = value.dtype
    return (card, dtype) if card is not None and dtype is not None and card.world is world else None


def _survey(
    world: World, values: Iterable[Any]
) -> tuple[list[Tensor], list[Card | Host], Card | None, bool, torch.dtype | None]:
    """The tensors among arguments, where each lies, the first card, whether all lie there, and what is computed in.

    That is the first dtype that capabilities are named after. One loop: every operation comes through here.
    """
    operands: list[Tensor] = []
    places: list[Card | Host] = []
    card, together, dtype = None, True, None
    for value in values:
        if isinstance(value, Tensor):
            tensors: Iterable[Tensor] = (value,)
        elif value.__class__ is list or value.__class__ is tuple:
            tensors = [inner for inner in value if isinstance(inner, Tensor)]
        else:
            continue
        for tensor in tensors:
            location = where(world, tensor)
            operands.append(tensor)
            places.append(location)
            if card is None and isinstance(location, Card):
                card = location
            if location is not card:
                together = False
            elif dtype is None and tensor.dtype in refusals.DTYPE_NAMES:
                dtype = tensor.dtype
    return operands, places, card, together, dtype


def _keep(card: Card, operation: Operation, result: Any) -> None:
    """Puts the results of an operation on the card."""
    if result.__class__ is Tensor:
        claim(card, result)
    else:
        for tensor in _results(result)[: operation.kept]:
            claim(card, tensor)


def _kept(card: Card, func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of an operation, in the card's memory. Where their size is known before, so is whether they fit."""
    if not (operation.sized or operation.random):
        result = func(*args, **kwargs)
        if operation.fresh:
            _keep(card, operation, result)
        return result
    size = operation.bytes(args, kwargs) if operation.sized else None
    block = card.allocate(size) if size is not None else None
    try:
        result = card.by_chance(func, args, kwargs) if operation.random else func(*args, **kwargs)
        if operation.fresh:
            for tensor in _results(result)[: operation.kept]:
                if claim(card, tensor, block):
                    block = None
        return result
    finally:
        if block is not None:  # nothing was made, or the result is a tensor that was there before
            card.release(block)


def _results(result: Any) -> list[Tensor]:
    """The tensors that an operation returned."""
    if isinstance(result, Tensor):
        return [result]
    if not isinstance(result, (list, tuple)):
        return []
    return [t for one in result for t in (one if isinstance(one, (list, tuple)) else (one,)) if isinstance(t, Tensor)]
