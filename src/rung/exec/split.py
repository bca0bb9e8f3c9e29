"""An operation that does not fit into memory, computed in pieces of its rows.

The whole result is held, the pieces need less beside it: copies in another dtype, a library's workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rung.core.types import StepClass
from rung.diagnosis import match_alone
from rung.exec.fallbacks import Way

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
