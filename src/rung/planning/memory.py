"""Predicted bytes of a model on a device, by what they hold."""

from __future__ import annotations

from collections.abc import Iterable

from rung.core.types import Device, MemoryUse
from rung.models.card import Decoder
from rung.models.footprint import activation_bytes, cache_bytes
from rung.planning.recipe import Weight

_MB = 2**20
#: Resident bytes of the process before any weight: Python, torch, Numba and their compiled kernels, the tokenizer.
#: Measured by benchmarks/language_model.py as the peak minus weights, cache and activations.
_RUNTIME_CPU = 450 * _MB
#: The CUDA context, cuBLAS and the kernels that torch loads; 250 to 600 MB by architecture and build.
_RUNTIME_GPU = 400 * _MB
#: Weights are read in windows; what is read and not yet given back, and the slab of a decoding rung.
_WINDOW = 64 * _MB


def layer_of(weight: Weight) -> int | None:
    """The layer a weight belongs to, or None for the embedding, the last norm and the head."""
    parts = weight.tensor.role.split(".")
    return int(parts[1]) if parts[0] == "layers" else None


def held(weights: Iterable[Weight], first: int, last: int, layers: int, tied: bool) -> list[Weight]:
    """The weights that a device with the layers [first, last) holds.

    The first device holds the embedding; the last one the final norm and the head, which for a tied
    head means a second copy of the embedding when the layers are split.
    """
    found = []
    for weight in weights:
        layer, role = layer_of(weight), weight.tensor.role
        starts, ends = first == 0, last == layers
        inside = layer is not None and first <= layer < last
        embeds = role == "embed" and (starts or (tied and ends))
        if inside or embeds or (ends and role in ("norm", "head")):
            found.append(weight)
    return found


def memory_use(
    weights: Iterable[Weight], decoder: Decoder, device: Device, first: int, last: int, context: int, cache_dtype: str
) -> MemoryUse:
    """Bytes on one device that holds the layers [first, last), for a full context."""
    layers = len(decoder.layers)
    mine = held(weights, first, last, layers, decoder.tied_head)
    slab = max((w.count * 4 for w in mine if w.packing == "stored" and len(w.tensor.shape) > 1), default=0)
    return MemoryUse(
        weights=sum(weight.bytes for weight in mine),
        kv_cache=cache_bytes(decoder, context, cache_dtype, last - first),
        activations=activation_bytes(decoder, context),
        workspace=_WINDOW + min(slab, _WINDOW),
        runtime=_RUNTIME_CPU if device.kind == "cpu" else _RUNTIME_GPU,
    )
