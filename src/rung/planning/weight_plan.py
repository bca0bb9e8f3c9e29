"""Decide the format, packing and rung of each tensor on a device, for the format that ``solve`` tries."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rung import formats
from rung.core.types import YES, Case, Climb, Device, Format, Level, Part, no
from rung.core.value import FrozenDict, Value
from rung.kernels.cpu.pack.layouts import HUGE, is_generic, packed_bytes
from rung.kernels.webgpu.layouts import gpu_bytes
from rung.models.card import Encoder, Tensor
from rung.models.networks.values import SCALE
from rung.models.roles import layer_of
from rung.ops import LADDERS
from rung.ops.linear import ON_DEVICE
from rung.planning.gguf_mixtures import Mixture, TensorPosition
from rung.planning.network_spec import Subject, is_table

#: Formats with fewer bits than this keep the embedding and the head in a better one, as the usual mixtures do.
_COARSE_BITS = 6.0
#: Tensors that no file stores in blocks: convolutions, routers of experts, positions. They stay floats.
_FLOATS = ("conv", "router", "positions", "types", "table", "bias")

#: Packings that may take more than the stored weight.
WIDER = ("r16", "cuda")

#: Packed weights above this have huge pages of their own, the last of which is resident whole
#: (``kernels.cpu.pack.arena``).
OWN_MAPPING = 16 << 20

#: A format for every weight, llama.cpp's mixture of them, or None: as stored.
Storage = Format | Mixture | None


@dataclass(frozen=True)
class Weight(Value):
    """One tensor as it will be held: ``bytes`` counts its packing, scales and padding."""

    tensor: Tensor
    format: Format
    packing: str
    rung: str
    bytes: int
    reason: str = ""

    @functools.cached_property
    def count(self) -> int:
        """Number of weights."""
        return math.prod(self.tensor.shape)

    @functools.cached_property
    def read(self) -> int:
        """Bytes that are read to multiply it once: of what is packed, not the stored copy beside it."""
        return min(self.bytes, packed_bytes(self.format, self.tensor.shape)) if self.packing == "r16" else self.bytes

    @functools.cached_property
    def adapter_row(self) -> int:
        """Number of weights of an adapter of rank 1: 0 where it is no matrix of a layer. The experts of a layer may
        lie in one tensor, and each has its own."""
        if not is_linear(self.tensor):
            return 0
        rows, columns = self.tensor.shape[-2:]
        return (rows + columns) * (self.count // (rows * columns))

    @functools.cached_property
    def multiplies(self) -> bool:
        """Return whether it is a matrix, no norm or bias."""
        return len(self.tensor.shape) > 1 and self.tensor.shape[0] > 1


def storage_name(stored_as: Storage) -> str:
    """Return the common name of a storage, without default parameters: ``q4_k``, ``nf4``, ``q4_k_m`` or ``stored``."""
    return formats.short_name(stored_as.name) if stored_as is not None else "stored"


def compute_dtype(device: Device, lossless: bool) -> str:
    """Return the dtype that a device multiplies fastest; f32 for a model that is stored, or asked for, in f32.

    Never f16 on a CPU without f16 arithmetic: there it is up to hundreds of times slower than bf16. Kernels in WGSL
    read 16 bits and compute in f32.
    """
    if lossless or device.kind == "webgpu":
        return "f32"
    for dtype in ("bf16", "f16"):
        native = device.capability(f"matmul.{dtype}").level is Level.NATIVE
        faster = device.peaks.get(dtype, 0.0) > device.peaks.get("f32", 0.0) or not device.peaks
        if native and faster:
            return dtype
    return "f32"


@dataclass(frozen=True)
class Alike(Value):
    """Tensors that are held alike: the first of them, and where all stand among the tensors of the model."""

    weight: Weight
    places: tuple[int, ...]


def classes(subject: Subject, each: bool) -> tuple[tuple[int, ...], ...]:
    """The places of tensors that only their layer tells apart, by class; ``each`` layer for itself, as a mixture looks
    at them."""
    found: dict[object, list[int]] = {}
    for index, tensor in enumerate(subject.tensors):
        role = tensor.role.rpartition(".")[2]
        # what stands outside of all layers is no other layer's
        name = tensor.role if each or role == tensor.role else f".{role}"
        found.setdefault((name, tensor.shape, tensor.format, tensor.source is None), []).append(index)
    return tuple(map(tuple, found.values()))


def alike(
    subject: Subject,
    stored_as: Storage,
    device: Device,
    dtype: str,
    packed: bool,
    classes: tuple[tuple[int, ...], ...],
) -> tuple[Alike, ...]:
    """Every class of tensors with its format, packing and rung; see ``plan_weights``."""
    plain = formats.get(dtype) if subject.borrowed and subject.keeps else None
    climbs: dict[tuple[str, tuple[int, ...]], Climb] = {}

    def climb(format: Format, shape: tuple[int, ...]) -> Climb:
        key = (format.name, shape)
        if key not in climbs:
            climbs[key] = climb_linear(device, format, dtype, shape, packed and packs(subject, device))
        return climbs[key]

    found = []
    for indexes in classes:
        tensor = subject.tensors[indexes[0]]
        if stored_as is not None and tensor.role.endswith(SCALE):
            continue
        mine = stored_as if tensor.source or plain is None else plain
        found.append(Alike(_weight(subject, tensor, mine, climb), indexes))
    return tuple(found)


def plan_weights(subject: Subject, stored_as: Storage, device: Device, dtype: str, packed: bool) -> tuple[Weight, ...]:
    """Every tensor of the model with its format, packing and rung; ``stored_as`` None keeps what is stored.

    ``packed`` False keeps every weight in its stored layout: smaller where a packing is wider, and slower. A network of
    transformers holds in ``dtype`` what its checkpoint has not quantized.
    """
    kinds = classes(subject, isinstance(stored_as, Mixture))
    return in_order(subject, alike(subject, stored_as, device, dtype, packed, kinds))


def packs(subject: Subject, device: Device) -> bool:
    """Return whether weights may be held there as a rung packs them: layers of ``rung.nn`` hold what is stored too, for
    which a GPU has no room."""
    return device.kind == "cpu" or not subject.borrowed


def in_order(subject: Subject, kinds: tuple[Alike, ...]) -> tuple[Weight, ...]:
    """The weights of all classes, in the order of the model's tensors."""
    likes = {index: kind.weight for kind in kinds for index in kind.places}
    return tuple(
        Weight(tensor, like.format, like.packing, like.rung, like.bytes, like.reason)
        for index, tensor in enumerate(subject.tensors)
        if (like := likes.get(index)) is not None
    )


def _weight(
    subject: Subject, tensor: Tensor, stored_as: Storage, climb_to: Callable[[Format, tuple[int, ...]], Climb]
) -> Weight:
    if len(tensor.shape) < 2 or tensor.shape[0] == 1:
        return Weight(tensor, formats.get("f32"), "stored", "ref", 4 * math.prod(tensor.shape))
    chosen, reason = format_of(subject, tensor, stored_as)
    climb = climb_to(chosen, tensor.shape)
    if climb.rung is None:
        return Weight(tensor, chosen, "stored", "", chosen.bytes(tensor.shape), climb.refusals[-1].reason)
    looked_up = is_table(tensor.role) and not (tensor.role == "embed" and subject.tied)
    if tensor.role == "embed" and climb.rung.packing == "webgpu":
        looked_up = False  # rows are read there, as those of a tied head
    packing = "stored" if looked_up else climb.rung.packing
    resident = _resident_bytes(tensor, chosen, packing, subject)
    return Weight(tensor, chosen, packing, climb.rung.name, resident, reason)


def _resident_bytes(tensor: Tensor, format: Format, packing: str, subject: Subject) -> int:
    """Bytes in memory. A generic layout keeps the stored weight for the way back, free while it is a file's. Layers of
    ``rung.nn`` keep it too; in ``rung run`` only a head that is an embedding does, for its rows."""
    if packing in ON_DEVICE:
        return gpu_bytes(format, tensor.shape)
    if packing != "r16":
        return tensor.bytes if format.name == tensor.format else format.bytes(tensor.shape)
    converted = format.name != tensor.format or (tensor.source is not None and not tensor.source.mapped)
    converted = converted or subject.borrowed
    copied = subject.keeps_stored or (subject.borrowed and tensor.role == "embed") or (is_generic(format) and converted)
    packed = packed_bytes(format, tensor.shape)
    if packed > OWN_MAPPING:
        packed = -(-packed // HUGE) * HUGE
    return packed + (format.bytes(tensor.shape) if copied else 0)


def file_bytes(subject: Subject, stored_as: Storage) -> int:
    """Bytes of the tensors of a GGUF file in a format or mixture, as llama.cpp writes it; vectors stay f32."""
    total = 0
    for tensor in subject.tensors:
        plain = len(tensor.shape) < 2 or tensor.shape[0] == 1
        fmt = formats.get("f32") if plain else format_of(subject, tensor, stored_as)[0]
        total += fmt.bytes(tensor.shape)
    return total


def format_of(subject: Subject, tensor: Tensor, stored_as: Storage) -> tuple[Format, str]:
    """The format that a matrix gets, with the reason where it is not the one that was asked for."""
    if stored_as is None:
        return formats.get(tensor.format), ""
    role, columns = tensor.role.rpartition(".")[2], tensor.shape[-1]
    floats = role.endswith(_FLOATS) or len(tensor.shape) > 3
    if floats and subject.borrowed:
        return formats.get("f32"), "f32: no layer of rung's holds it"
    if floats and (isinstance(stored_as, Mixture) or stored_as.bits < 16):
        return formats.get("f16"), "f16: no file stores it in blocks"
    if isinstance(stored_as, Mixture):
        return stored_as.format_at(_position(subject, tensor)), f"as in {stored_as.name.upper()} files"
    if stored_as.bits < _COARSE_BITS and tensor.role in ("embed", "head"):
        better = next(f for f in map(formats.get, ("q6_k", "q8_0", "int8")) if f.divides(columns))
        return better, f"{better.name}: the output head is kept finer than the rest"
    if not stored_as.divides(columns):
        better = formats.next_better(stored_as, columns)
        return better, f"{better.name}: blocks of {stored_as.block} do not divide rows of {columns}"
    return stored_as, ""


def _position(subject: Subject, tensor: Tensor) -> TensorPosition:
    shape = subject.shape
    shared = shape.heads // shape.kv_heads if shape.kv_heads else 1
    return TensorPosition(
        role=tensor.role.rpartition(".")[2],
        columns=tensor.shape[-1],
        layer=layer_of(tensor.role) or 0,
        layers=subject.layers,
        shared=shared,
        experts=shape.experts,
        tied=subject.tied,
        large=subject.layers == 80 and shared == 8,
    )


def climb_linear(device: Device, format: Format, dtype: str, shape: tuple[int, ...], packed: bool) -> Climb:
    """The rung that multiplies one row by such a weight there; without ``packed`` only those that take it as stored."""
    rows, columns = shape[-2], shape[-1]
    case = Case("linear", format.name, dtype, (1, rows, columns))
    wider = no("would hold a wider copy of the weight")
    return LADDERS["linear"].climb(device, case, lambda rung: YES if packed or rung.packing not in WIDER else wider)


def is_linear(tensor: Tensor) -> bool:
    """Return whether it is a matrix of a layer, or a stack of them: no norm, table, head, convolution or router."""
    role = tensor.role.rpartition(".")[2]
    matrix = 2 <= len(tensor.shape) <= 3 and tensor.shape[0] > 1
    return matrix and not is_table(tensor.role) and role != "head" and not role.endswith(_FLOATS)


def parts(weights: tuple[Weight, ...], plan_format: str) -> tuple[Part, ...]:
    """The roles (without their layer's number) whose format is not the plan's own, with the reason."""
    found: dict[tuple[str, str], str] = {}
    for weight in weights:
        if weight.multiplies and weight.format.name != plan_format:
            found.setdefault((weight.tensor.role.rpartition(".")[2], weight.format.name), weight.reason)
    return tuple(Part(role, name, reason) for (role, name), reason in found.items())


def reads_without_torch(subject: Subject, weights: Iterable[Weight], device: Device, cache_dtype: str) -> bool:
    """Return whether a model whose ``weights`` are all on ``device`` runs without torch, prompts included.

    It does where torch is not installed; else where every matrix that is multiplied is packed with its columns in
    order, and ``numba.step`` computes its tokens, or ``numba.layers`` its texts. Nothing of WebGPU needs it.
    """
    decoder = subject.decoder
    if device.kind == "webgpu":
        return decoder is not None and not subject.borrowed
    if (decoder is None and subject.encoder is None) or subject.borrowed or device.kind != "cpu":
        return False
    if "torch" not in device.software:
        return True
    weights = list(weights)
    if any(w.packing not in ("r16", "mapped") or _is_ordered(w) for w in _multiplied(subject, weights)):
        return False
    if decoder is None:
        return _encodes_without_torch(subject, device)
    return step_rung(subject, weights, device, cache_dtype) == "numba.step"


def step_rung(subject: Subject, weights: Iterable[Weight], device: Device, cache_dtype: str) -> str:
    """Return the rung that computes the tokens of a decoder whose ``weights`` are all on ``device``; "" for none."""
    if subject.decoder is None or subject.borrowed:
        return ""
    rung = LADDERS["decode_step"].climb(device, step_case(subject, weights, cache_dtype)).rung
    return "" if rung is None else rung.name


def step_case(subject: Subject, weights: Iterable[Weight], cache_dtype: str, part: bool = False) -> Case:
    """Return the case of ``decode_step`` for a decoder whose ``weights`` are all on one device, or for a ``part`` of
    its layers."""
    decoder = subject.decoder
    assert decoder is not None
    multiplied = _multiplied(subject, weights)
    options = {
        "linears": tuple(sorted({weight.rung for weight in multiplied})),
        "head_dim": decoder.head_dim,
        "devices": 1,
        "ordered": any(map(_is_ordered, multiplied)),
        **({"part": True} if part else {}),
    }
    sizes = (len(decoder.layers), decoder.hidden, decoder.feed_forward, decoder.vocabulary)
    return Case("decode_step", cache_dtype, "f32", sizes, FrozenDict(options))


def _multiplied(subject: Subject, weights: Iterable[Weight]) -> list[Weight]:
    return [w for w in weights if w.multiplies and (subject.tied or not is_table(w.tensor.role))]


def _is_ordered(weight: Weight) -> bool:
    return weight.format.layout == "ordered"


def _encodes_without_torch(subject: Subject, device: Device) -> bool:
    """Return whether what lies between the linears of an encoder is compiled."""
    assert subject.encoder is not None
    rung = LADDERS["encoder"].climb(device, encoder_case(subject.encoder)).rung
    return rung is not None and rung.name == "numba.layers"


def encoder_case(encoder: Encoder) -> Case:
    """Return the case of the op ``encoder`` for an encoder."""
    sizes = (encoder.layers, encoder.hidden, encoder.feed_forward, encoder.heads)
    return Case("encoder", "f32", "f32", sizes, FrozenDict({"activation": encoder.activation}))


def combined_db(parts: Iterable[tuple[int, float]]) -> float:
    """SQNR in dB of weights stored in several formats.

    ``parts`` are (number of weights, floor in dB). Noise powers add: the signal power per weight is taken
    to be the same in every part. Infinite when nothing is lost.
    """
    counted = list(parts)
    weights = sum(count for count, _ in counted)
    noise = sum(count * 10 ** (-floor / 10) for count, floor in counted if math.isfinite(floor))
    return math.inf if noise == 0 else -10 * math.log10(noise / weights)


def percent(db: float) -> float:
    """The relative error in per cent that an SQNR in dB means: 40 dB is 1 %."""
    return 0.0 if math.isinf(db) else float(100 * 10 ** (-db / 20))
