"""Which format, packing and rung every tensor gets on a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rung import formats
from rung.core.types import YES, Case, Climb, Device, Format, Level, Part, no
from rung.core.value import Value
from rung.kernels.cpu.layouts import GENERIC, packed_bytes
from rung.models.card import ModelCard, Tensor
from rung.ops import LADDERS

#: Formats with fewer bits than this keep the embedding and the head in a better one, as the usual mixtures do.
_COARSE_BITS = 6.0


@dataclass(frozen=True)
class Weight(Value):
    """One tensor as it will be held: ``bytes`` counts its packing, scales and padding."""

    tensor: Tensor
    format: Format
    packing: str
    rung: str
    bytes: int
    reason: str = ""

    @property
    def count(self) -> int:
        """Number of weights."""
        return math.prod(self.tensor.shape)


def compute_dtype(device: Device, lossless: bool) -> str:
    """What a device multiplies fastest; f32 for a model that is stored, or asked for, in f32.

    Never f16 on a CPU without f16 arithmetic: there it is up to hundreds of times slower than bf16.
    """
    if lossless:
        return "f32"
    for dtype in ("bf16", "f16"):
        native = device.capability(f"matmul.{dtype}").level is Level.NATIVE
        faster = device.peaks.get(dtype, 0.0) > device.peaks.get("f32", 0.0) or not device.peaks
        if native and faster:
            return dtype
    return "f32"


def recipe(card: ModelCard, format: Format | None, device: Device, dtype: str, packed: bool) -> tuple[Weight, ...]:
    """Every tensor of the model with its format, packing and rung; ``format`` None keeps what is stored.

    ``packed`` False keeps every weight in its stored layout: smaller where a packing is wider, and slower.
    """
    return tuple(_weight(card, tensor, format, device, dtype, packed) for tensor in card.tensors)


def _weight(card: ModelCard, tensor: Tensor, format: Format | None, device: Device, dtype: str, packed: bool) -> Weight:
    if len(tensor.shape) == 1 or tensor.shape[0] == 1:
        return Weight(tensor, formats.get("f32"), "stored", "ref", 4 * math.prod(tensor.shape))
    chosen, reason = _format(tensor, format)
    climb = climb_linear(device, chosen, dtype, tensor.shape, packed)
    if climb.rung is None:
        return Weight(tensor, chosen, "stored", "", chosen.bytes(tensor.shape), climb.refusals[-1].reason)
    packing = "stored" if tensor.role == "embed" and not card.decoder.tied_head else climb.rung.packing
    return Weight(tensor, chosen, packing, climb.rung.name, _held_bytes(tensor, chosen, packing), reason)


def _held_bytes(tensor: Tensor, format: Format, packing: str) -> int:
    """Bytes in memory. A generic layout keeps the stored weight for the way back: free while it is a file's."""
    stored = format.bytes(tensor.shape)
    if packing != "r16":
        return stored
    copied = format.name in GENERIC and format.name != tensor.format
    return packed_bytes(format, tensor.shape) + (stored if copied else 0)


def _format(tensor: Tensor, asked: Format | None) -> tuple[Format, str]:
    if asked is None:
        return formats.get(tensor.format), ""
    if asked.bits < _COARSE_BITS and tensor.role in ("embed", "head"):
        better = next(f for f in map(formats.get, ("q6_k", "q8_0", "int8")) if f.divides(tensor.shape[-1]))
        return better, f"{better.name}: the output head is kept finer than the rest"
    if not asked.divides(tensor.shape[-1]):
        better = formats.next_better(asked, tensor.shape[-1])
        return better, f"{better.name}: blocks of {asked.block} do not divide rows of {tensor.shape[-1]}"
    return asked, ""


def climb_linear(device: Device, format: Format, dtype: str, shape: tuple[int, ...], packed: bool) -> Climb:
    """The rung that multiplies one row by such a weight there; without ``packed`` only those that take it as stored."""
    rows, columns = shape[0], shape[-1]
    case = Case("linear", format.name, dtype, (1, rows, columns))
    wider = no("would hold a wider copy of the weight")
    return LADDERS["linear"].climb(device, case, lambda rung: YES if packed or rung.packing == "stored" else wider)


def parts(weights: tuple[Weight, ...], plan_format: str) -> tuple[Part, ...]:
    """The roles (without their layer's number) whose format is not the plan's own, with the reason."""
    found: dict[tuple[str, str], str] = {}
    for weight in weights:
        if len(weight.tensor.shape) > 1 and weight.format.name != plan_format:
            found.setdefault((weight.tensor.role.rpartition(".")[2], weight.format.name), weight.reason)
    return tuple(Part(role, name, reason) for (role, name), reason in found.items())
