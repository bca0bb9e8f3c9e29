"""Predicted tokens per second, from bytes, operations and the device's rates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rung.core.types import Device
from rung.models.card import Decoder
from rung.models.footprint import cache_bytes
from rung.planning.recipe import Weight

#: Bytes per second and operations per second taken when nothing is measured and the catalogue is silent.
_SLOWEST_BANDWIDTH = 15e9
_SLOWEST_PEAK = 5e10
#: Weights per second that one core decodes in numpy, for the rungs that decode before they multiply.
_DECODED_PER_SECOND = 1.5e8
#: Share of the measured bandwidth and peak that the kernels reach (benchmarks/linear_kernels.py).
_BANDWIDTH_SHARE = 0.75
_PEAK_SHARE = 0.5
#: Seconds beside the linears per layer and token: norms, rope, attention's launch.
_LAYER_SECONDS = 6e-5


@dataclass(frozen=True)
class Rates:
    """Tokens per second when answering (decode) and when reading a prompt (prefill)."""

    decode: float
    prefill: float


def rates(weights: Iterable[Weight], decoder: Decoder, device: Device, context: int, cache_dtype: str) -> Rates:
    """Tokens per second of a model that lies on one device, with half the context filled."""
    linear = [w for w in weights if len(w.tensor.shape) > 1 and (w.tensor.role != "embed" or decoder.tied_head)]
    bandwidth = (device.bandwidth or _SLOWEST_BANDWIDTH) * _BANDWIDTH_SHARE
    decode = cache_bytes(decoder, context, cache_dtype) / 2 / bandwidth
    prefill = 0.0
    for weight in linear:
        decode += _one_row(weight, device, bandwidth)
        if weight.tensor.role not in ("embed", "head"):  # a prompt needs the head once, not at every token
            prefill += 2 * weight.count / (_peak(weight, device) * _PEAK_SHARE)
    overhead = _LAYER_SECONDS * len(decoder.layers)
    return Rates(1 / (decode + overhead), 1 / (prefill + overhead / 8))


def _one_row(weight: Weight, device: Device, bandwidth: float) -> float:
    seconds = weight.bytes / bandwidth
    if weight.rung in ("torch.decode", "ref") and weight.format.name not in ("f32", "f16", "bf16"):
        if device.kind == "cpu":
            return seconds + weight.count / _DECODED_PER_SECOND
        return seconds + 8 * weight.count / bandwidth  # written once and read once more as 16- or 32-bit floats
    return seconds


def _peak(weight: Weight, device: Device) -> float:
    wanted = "int8" if weight.rung.startswith("numba") else "f32"
    return device.peaks.get(wanted) or device.peaks.get("f32") or _SLOWEST_PEAK


def split_rates(parts: Iterable[tuple[Rates, int]], layers: int) -> Rates:
    """Rates of a model split by layers: the times of the parts add, each in proportion to its layers."""
    shares = [(part, count / layers) for part, count in parts]
    return Rates(
        1 / sum(share / part.decode for part, share in shares),
        1 / sum(share / part.prefill for part, share in shares),
    )
