"""Every operation while a simulation is in force: devices that mix, refusals, memory, and where results lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rung.run.simulate import placement, refusals
from rung.run.simulate.allocator import Block
from rung.run.simulate.placement import UNDECIDED, Mark, wanting
from rung.run.simulate.world import World

_CPU = torch.device("cpu")
_NONE: dict[str, Any] = {}
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
#: The names under which torch's wrappers check arguments, where it is not the operation's own.
_WRAPPERS = {
    "embedding": ("_index_select", {"weight": "self", "indices": "index"}),
    "convolution": ("_convolution", {}),
}
#: Operations whose wrappers name the argument; all others go through iterators, which do not.
_NAMED = frozenset((*_MATMUL, *_WRAPPERS, "cat", "index_select", "gather", "scatter", "native_layer_norm", "nll_loss"))


class Facts:
    """What is known of an operation, found out at its first call."""

    def __init__(self, world: World, func: Any) -> None:
        schema = func._schema
        self.name = func._schema.name.split("::")[1]
        self.kind = _kind(self.name)
        self.composite = func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        self.mixes = self.name in _MIXES
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.arguments = [argument.name for argument in schema.arguments]
        self.sized = self.name in (*_SIZE_FIRST, *_SIZE_SECOND, *_SAME_SIZE)
        self.view = any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)
        self.launches = not (
            self.view or self.name.startswith(("empty", "new_empty", "_to_copy", "copy_", "set_", "lift"))
        )
        self._world = world
        self._failures: dict[torch.dtype, Callable[[], Exception] | None] = {}
        self._nan: dict[torch.dtype, bool] = {}

    def failure(self, dtype: torch.dtype) -> Callable[[], Exception] | None:
        """What makes the error of this operation in that dtype; None when the card does it."""
        if dtype not in self._failures:
            self._failures[dtype] = self._judge(dtype) if self.launches else None
        return self._failures[dtype]

    def _judge(self, dtype: torch.dtype) -> Callable[[], Exception] | None:
        name = refusals.DTYPE_NAMES.get(dtype, "")
        for defect in self._world.defects:
            if defect.exception is not None and defect.hits(self.name, self.kind, name):
                return lambda exception=defect.exception, text=defect.text: exception(text)  # type: ignore[misc]
        return refusals.refusal(self._world, self.name, self.kind, name)

    def spoils(self, dtype: torch.dtype) -> bool:
        """Whether the results are NaN."""
        if dtype not in self._nan:
            name = refusals.DTYPE_NAMES.get(dtype, "")
            defects = [d for d in self._world.defects if d.exception is None]
            self._nan[dtype] = self.launches and any(d.hits(self.name, self.kind, name) for d in defects)
        return self._nan[dtype]

    def bytes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """The size of the result where the arguments tell it, so that it is refused before it is made."""
        dtype = kwargs.get("dtype")
        if self.name in _SAME_SIZE:
            return int(args[0].numel()) * (dtype or args[0].dtype).itemsize
        sizes = [a for a in args if isinstance(a, (list, tuple))]
        if not sizes:
            return None
        like = args[0].dtype if self.name in _SIZE_SECOND else torch.get_default_dtype()
        return math.prod(int(n) for n in sizes[0]) * (dtype or like).itemsize


def _kind(name: str) -> str:
    if name in _MATMUL:
        return "matmul"
    if "attention" in name:
        return "attention"
    return "convolution" if "convolution" in name else "elementwise"


class Dispatch(TorchDispatchMode):
    """Sees every operation of the threads that it is in force in."""

    def __init__(self, world: World, facts: dict[Any, Facts]) -> None:
        super().__init__()
        self.world = world
        self._facts = facts  # shared by the threads of a simulation

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would wrap the method below against its compiler, which costs 10 us an operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation on the CPU, as the card would."""
        kwargs = kwargs or _NONE
        world = self.world
        if not world.active:  # a thread that outlives the simulation
            return func(*args, **kwargs)
        wanted = world.local.wanted
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            if world.names_card(device) is None:
                return func(*args, **kwargs)
            kwargs, wanted = {**kwargs, "device": _CPU}, True
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = Facts(world, func)
        if facts.composite:  # in inference mode: seen again by its parts
            with wanting(world, wanted), self:
                return func.decompose(*args, **kwargs)
        given = _tensors(args, kwargs)
        marks = [placement.mark(tensor) for tensor in given]
        there = [m.__class__ is Mark and m.world is world for m in marks]
        card = any(there)
        if card and not facts.mixes and wanted is None and not all(there):
            self._settle(facts, given, marks, there, args, kwargs)
        target = wanted if wanted is not None else card
        if not (card or target):
            result = func(*args, **kwargs)
            if not given or all(m is UNDECIDED for m in marks):
                for tensor in _results(result):
                    (placement.leave_open if wanted is None else placement.settle)(tensor)
            return result
        return self._on_card(func, facts, args, kwargs, given, there, target)

    def _on_card(
        self,
        func: Any,
        facts: Facts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[Tensor],
        there: list[bool],
        target: bool,
    ) -> Any:
        world = self.world
        dtype = next(
            (t.dtype for t, on in zip(given, there, strict=True) if on and t.dtype in refusals.DTYPE_NAMES), None
        )
        if dtype is None:
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
        failure = facts.failure(dtype)
        if failure is not None:
            raise failure()
        if facts.kind == "matmul":
            world.use_workspace()
        elif facts.kind == "attention":
            refusals.check_attention(world, dtype)
        block: Block | None = None
        size = facts.bytes(args, kwargs) if target and facts.sized else None
        if size is not None:
            block = world.allocate(size)
        try:
            result = self._by_chance(func, args, kwargs) if facts.random and target else func(*args, **kwargs)
        except BaseException:
            if block is not None:
                world.allocator.release(block)
            raise
        if target and (block is not None or not facts.view or not there):
            self._claim(result, block)
        if world.defects and facts.spoils(dtype):
            for tensor in _results(result):
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
        return result

    def _claim(self, result: Any, block: Block | None) -> None:
        for tensor in _results(result):
            if block is not None and not placement.on_card(self.world, tensor):
                placement.claim(self.world, tensor, block)
                block = None
            else:
                placement.claim(self.world, tensor)
        if block is not None:  # the result is a tensor that was there before
            self.world.allocator.release(block)

    def _by_chance(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """With the card's own random state, unless a generator is named."""
        if kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        world = self.world
        with world.chance:
            kept = torch.default_generator.get_state()
            torch.default_generator.set_state(world.random.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                world.random.set_state(torch.default_generator.get_state())
                torch.default_generator.set_state(kept)

    def _settle(
        self,
        facts: Facts,
        given: list[Tensor],
        marks: list[Any],
        there: list[bool],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Takes undecided tensors to the card; raises torch's error for one that lies on the host."""
        world = self.world
        for index, tensor in enumerate(given):
            if there[index]:
                continue
            if marks[index] is UNDECIDED:
                placement.claim(world, tensor)
                there[index] = True
            elif tensor.dim() and placement.real_device(tensor).type == "cpu":
                name = _argument(facts, tensor, args, kwargs) if facts.name in _NAMED else ""
                op, renamed = _WRAPPERS.get(facts.name, (facts.name, {}))
                raise refusals.mixed_devices(world, op, renamed.get(name, name), "cpu", str(world.place))


def _dtype(given: list[Tensor], there: list[bool]) -> torch.dtype | None:
    """What an operation computes in: the first dtype on the card that capabilities are named after."""
    for tensor, on in zip(given, there, strict=True):
        if on and (dtype := tensor.dtype) in refusals.DTYPE_NAMES:
            return dtype
    return None


def _argument(facts: Facts, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    for name, value in (*zip(facts.arguments, args, strict=False), *kwargs.items()):
        if value is tensor or (isinstance(value, (list, tuple)) and any(v is tensor for v in value)):
            return str(name)
    return ""


def _tensors(values: Iterable[Any], named: dict[str, Any] = _NONE) -> list[Tensor]:
    """The tensors among arguments or results, those in lists too."""
    found: list[Tensor] = []
    for value in (*values, *named.values()) if named else values:
        if isinstance(value, Tensor):
            found.append(value)
        elif value.__class__ is list or value.__class__ is tuple:
            found += [inner for inner in value if isinstance(inner, Tensor)]
    return found


def _results(result: Any) -> list[Tensor]:
    """The tensors that an operation returned."""
    return [result] if isinstance(result, Tensor) else _tensors(result) if isinstance(result, (list, tuple)) else []
