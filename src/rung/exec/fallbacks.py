"""Other ways to the values of a refused operation: the rungs below it, lower dtypes, and pieces of its rows."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rung.core.types import StepClass
from rung.diagnosis import match_alone
from rung.run.torch_private import is_cudnn_enabled, set_cudnn_enabled, storage_device

#: A way to compute an operation: (arguments, named arguments) -> its result.
Way = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]

_FLOAT8 = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("float8_e4m3") or name == "float8_e5m2")
#: Which dtypes stand in for one, the first that the device has.
_LOWER: Mapping[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.float32, torch.float16),
    torch.float16: (torch.float32, torch.bfloat16),
    torch.float64: (torch.float32,),
    torch.complex32: (torch.complex64,),
    torch.complex128: (torch.complex64,),
    **dict.fromkeys(_FLOAT8, (torch.float32, torch.float16)),
}
_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
#: The longest sum of products of two int8 that f32 holds exactly: 2^24 / (128 * 128).
_EXACT = 1024


def ways(op: Any, dtype: torch.dtype, algorithms: bool) -> Iterator[tuple[str, Way]]:
    """The rungs below an operation in that dtype, named, best first.

    ``algorithms``: whether the refusal may be one of the algorithm, so that other ways in the same dtype are tried.
    """
    name = str(op.name()).removeprefix("aten::")
    if name in _STAND_INS:
        yield "rung", _STAND_INS[name]
        return
    if name in _EMULATED:
        yield "emulated", _EMULATED[name]
        return
    if algorithms:
        yield from ROUTES.get(name, {}).items()
    for lower in _LOWER.get(dtype, ()):
        yield spelled(lower), functools.partial(_in_dtype, op, dtype, lower)


def stand_in(name: str, kernel: Callable[..., Any]) -> None:
    """Another library's operation, ``library::name`` or ``library::name.overload``, is computed by ``kernel`` where it
    is refused."""
    _STAND_INS[name] = lambda args, kwargs: kernel(*args, **kwargs)


def spelled(dtype: torch.dtype) -> str:
    """``bfloat16``, as torch writes it."""
    return str(dtype).removeprefix("torch.")


def _in_dtype(op: Any, dtype: torch.dtype, lower: torch.dtype, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The operation in another dtype; what it writes and returns has the dtypes that it would have had."""
    down = {dtype: lower}
    if dtype in _COMPLEX and lower in _COMPLEX:
        down[_COMPLEX[dtype]] = _COMPLEX[lower]
    up = {value: key for key, value in down.items()}
    changed = [(value, _changed(value, down)) for value in args]
    named = {key: (value, _changed(value, down)) for key, value in kwargs.items()}
    result = op(*(new for _, new in changed), **{key: new for key, (_, new) in named.items()})
    written = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            old, new = changed[position] if position < len(changed) else named.get(argument.name, (None, None))
            if isinstance(old, Tensor) and old is not new:
                old.copy_(new)
                written.append((new, old))
    requested = kwargs.get("dtype") or kwargs.get("out_dtype")
    if isinstance(result, Tensor):
        return _returned(result, written, {lower: requested} if isinstance(requested, torch.dtype) else up)
    promised = _promised(op, args, kwargs)
    return tuple(
        _returned(one, written, up if promised is None else {one.dtype: promised[index]})
        if isinstance(one, Tensor)
        else one
        for index, one in enumerate(result)
    )


def _returned(result: Tensor, written: list[tuple[Tensor, Tensor]], up: Mapping[torch.dtype, torch.dtype]) -> Tensor:
    for new, old in written:
        if result is new:
            return old
    return result.to(up.get(result.dtype, result.dtype))


def _changed(value: Any, down: Mapping[torch.dtype, torch.dtype]) -> Any:
    if isinstance(value, Tensor):
        return value.to(down[value.dtype]) if value.dtype in down else value
    if isinstance(value, torch.dtype):
        return down.get(value, value)
    return [_changed(item, down) for item in value] if value.__class__ in (list, tuple) else value


#: Where a storage's memory is, which on a simulated card is not where it says.
_memory: Callable[[Any], torch.device] = storage_device


def _promised(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.dtype] | None:
    """The dtypes of the results, found out without data; None where torch cannot say.

    What it says is what GPUs return. Processors return means and sums in the dtype of the input, but for attention.
    """
    if "attention" not in op._name and any(
        isinstance(a, Tensor) and _memory(a.untyped_storage()).type == "cpu" for a in args
    ):
        return None
    try:
        results = op(*(_without_data(a) for a in args), **{key: _without_data(a) for key, a in kwargs.items()})
    except (NotImplementedError, RuntimeError, TypeError):
        return None
    return [getattr(one, "dtype", torch.float32) for one in results]


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [_without_data(item) for item in value] if value.__class__ in (list, tuple) else value


def int_mm(left: Tensor, right: Tensor) -> Tensor:
    """int8 [m, k] x int8 [k, n] -> int32 [m, n] in f32, exactly: in pieces of k whose sums f32 holds."""
    total = left.new_zeros((left.shape[0], right.shape[1]), dtype=torch.int32)
    for start in range(0, left.shape[1], _EXACT):
        piece = slice(start, start + _EXACT)
        total += (left[:, piece].float() @ right[piece].float()).to(torch.int32)
    return total


def _int_mm(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    return int_mm(*args[:2])


def _scaled_mm(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """fp8 [m, k] x fp8 [k, n] with a scale a tensor or a row, in f32."""
    names = ("self", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype")
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    left, right = arguments["self"].float() * arguments["scale_a"], arguments["mat2"].float() * arguments["scale_b"]
    result = left @ right
    if arguments.get("bias") is not None:
        result = result + arguments["bias"].float()
    if arguments.get("scale_result") is not None:
        result = result * arguments["scale_result"]
    value: Tensor = result.to(arguments.get("out_dtype") or arguments["self"].dtype)
    return value


def _into_out(way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The overload that writes to the tensor ``out``, which then has the result's shape."""
    out: Tensor = kwargs["out"]
    result = way(args, {name: value for name, value in kwargs.items() if name != "out"})
    return out.resize_(result.shape).copy_(result)


def _contiguous(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """With fresh operands: rows without gaps, at aligned addresses."""
    return op(*(a.clone(memory_format=torch.contiguous_format) if isinstance(a, Tensor) else a for a in args), **kwargs)


def _without_cudnn(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """By torch's own kernels instead of cuDNN's and MIOpen's. The switch is one for all threads."""
    with _switching:
        before = is_cudnn_enabled()
        set_cudnn_enabled(False)
        try:
            return op(*args, **kwargs)
        finally:
            set_cudnn_enabled(before)


def _mm_batched(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """A product as a batch of one, which another function of the library computes."""
    return torch.bmm(args[0][None], args[1][None])[0]


def _addmm_batched(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    product = torch.bmm(args[1][None], args[2][None])[0]
    return torch.add(args[0] * kwargs.get("beta", 1), product, alpha=kwargs.get("alpha", 1))


def _bmm_one_by_one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    return torch.stack([torch.mm(left, right) for left, right in zip(*args[:2], strict=True)])


def convolved(op: Any) -> Mapping[str, Way]:
    """Return the ways of a convolution by an operation that computes it."""
    return {
        "without cuDNN": functools.partial(_without_cudnn, op),
        "contiguous": functools.partial(_contiguous, op),
    }


_switching = threading.Lock()
_STAND_INS: dict[str, Way] = {}
_EMULATED: Mapping[str, Way] = {
    "_int_mm": _int_mm,
    "_scaled_mm": _scaled_mm,
    "_int_mm.out": functools.partial(_into_out, _int_mm),
    "_scaled_mm.out": functools.partial(_into_out, _scaled_mm),
}
#: Other ways in the same dtype, for a library that refuses a layout or a size.
ROUTES: Mapping[str, Mapping[str, Way]] = {
    "mm": {"contiguous": functools.partial(_contiguous, torch.ops.aten.mm), "batched": _mm_batched},
    "addmm": {"contiguous": functools.partial(_contiguous, torch.ops.aten.addmm), "batched": _addmm_batched},
    "bmm": {"contiguous": functools.partial(_contiguous, torch.ops.aten.bmm), "one by one": _bmm_one_by_one},
    "convolution": convolved(torch.ops.aten.convolution),
    "convolution_backward": convolved(torch.ops.aten.convolution_backward),
}


#: In more pieces nothing is tried.
_MOST = 4096


@dataclass(frozen=True)
class Cut:
    """Arguments with the dimension along which they are cut together, and that of the result.

    Those in ``broadcast`` are cut only where they have that size there: a bias, or a batch that is shared.
    """

    arguments: Mapping[int, int]
    result: int
    broadcast: Mapping[int, int]


def _cut(result: int, arguments: Mapping[int, int], **broadcast: int) -> Cut:
    return Cut(arguments, result, {int(name[1:]): dimension for name, dimension in broadcast.items()})


#: By operation: what its rows are. Products are cut along either side.
_CUTS: Mapping[str, tuple[Cut, ...]] = {
    "mm": (_cut(0, {0: 0}), _cut(1, {1: 1})),
    "addmm": (_cut(0, {1: 0}, a0=-2), _cut(1, {2: 1}, a0=-1)),
    "bmm": (_cut(0, {0: 0, 1: 0}), _cut(1, {0: 1}), _cut(2, {1: 2})),
    "baddbmm": (_cut(0, {1: 0, 2: 0}, a0=-3), _cut(1, {1: 1}, a0=-2), _cut(2, {2: 2}, a0=-1)),
    "linear": (_cut(0, {0: 0}), _cut(-1, {1: 0}, a2=0)),
    "matmul": (_cut(-2, {0: -2}), _cut(-1, {1: -1})),
    "_int_mm": (_cut(0, {0: 0}), _cut(1, {1: 1})),
    "_scaled_mm": (_cut(0, {0: 0}, a2=0),),
    "convolution": (_cut(0, {0: 0}),),
    "_cdist_forward": (_cut(-2, {0: -2}), _cut(-1, {1: -2})),
}


def in_pieces(op: Any, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any | None:
    """The result of ``way`` in as few pieces as fit, or None where the operation cannot be cut or no piece fits."""
    for cut in _possible(op, args):
        (first, dimension), *_ = cut.arguments.items()
        size = args[first].shape[dimension]
        pieces = 2
        while pieces <= min(2 * size, _MOST):
            try:
                return _computed(cut, way, args, kwargs, size, -(-size // pieces))
            except Exception as error:
                if not full(error):
                    raise
                pieces *= 4
    return None


def full(error: BaseException) -> bool:
    """Return whether an exception says that memory has run out; what it was raised beside, a refusal, does not
    count."""
    found = match_alone(error)
    return found is not None and found.signature.step is StepClass.OUT_OF_MEMORY


def _possible(op: Any, args: tuple[Any, ...]) -> Iterator[Cut]:
    """The cuts that these arguments allow, the one through the largest of them first."""
    if op._overloadname != "default":
        return
    name = str(op._schema.name).removeprefix("aten::")
    allowed = [
        cut
        for cut in _CUTS.get(name, ())
        if all(
            number < len(args) and args[number].dim() >= max(dimension + 1, -dimension, 2)
            for number, dimension in cut.arguments.items()
        )
    ]
    yield from sorted(allowed, key=lambda cut: -max(args[number].numel() for number in cut.arguments))


def _computed(cut: Cut, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any], size: int, rows: int) -> Tensor:
    whole: Tensor | None = None
    for start in range(0, size, rows):
        count = min(rows, size - start)
        result = way(tuple(_piece(cut, number, value, start, count, size) for number, value in enumerate(args)), kwargs)
        if whole is None:
            shape = list(result.shape)
            shape[cut.result] = size
            whole = result.new_empty(shape)
        whole.narrow(cut.result, start, count).copy_(result)
    assert whole is not None
    return whole


def _piece(cut: Cut, number: int, value: Any, start: int, count: int, size: int) -> Any:
    if number in cut.arguments:
        return value.narrow(cut.arguments[number], start, count)
    dimension = cut.broadcast.get(number)
    if dimension is None or not isinstance(value, Tensor) or value.dim() < max(-dimension, dimension + 1):
        return value
    return value.narrow(dimension, start, count) if value.shape[dimension] == size else value
