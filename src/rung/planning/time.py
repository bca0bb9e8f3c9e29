"""Predicted tokens per second, from bytes, operations and the device's rates.

What ``rung calibrate`` measured stands in ``Device.rates``, by the rung that takes one row and the format:
``numba.row q4_k`` (bytes of held weights a second with one row of activations), ``numba.row q4_k many`` (operations a
second with many), ``cache`` (bytes of keys and values a second), ``layer`` (seconds of a layer beside its linears).
Where it has nothing the bandwidth and the peaks of the device are taken, and the shares of them that kernels reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rung.core.types import Device, Proof
from rung.planning.recipe import Weight
from rung.planning.subject import Subject, is_table

#: Tokens of the prompt that a speed is predicted for and after, where nobody says.
PROMPT = 512
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
#: How far off a prediction may be: after rung calibrate, after a probe, from the catalogue alone.
_CALIBRATED, _PROBED, _TABLE = 0.2, 0.35, 0.5
_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Rates:
    """Tokens per second when answering (decode) and when reading a prompt (prefill)."""

    decode: float
    prefill: float


@dataclass(frozen=True)
class Group:
    """The matrices that share a format, a rung and a use: weights and bytes that one token meets.

    ``once``: the head and a tied embedding, which a prompt needs once and not at every token.
    """

    format: str
    rung: str
    once: bool
    count: float
    bytes: float


def groups(weights: Iterable[Weight], subject: Subject) -> tuple[Group, ...]:
    """What is multiplied for a token; of experts the share that a token visits, of look-up tables nothing."""
    found: dict[tuple[str, str, bool], list[float]] = {}
    for weight in weights:
        role = weight.tensor.role
        head = role == "head" or (role == "embed" and subject.tied)
        if not weight.multiplies or (is_table(role) and not head):
            continue
        share = subject.experts_share if "experts" in role else 1.0
        sums = found.setdefault((weight.format.name, weight.rung, head), [0.0, 0.0])
        sums[0] += share * weight.count
        sums[1] += share * weight.bytes
    return tuple(Group(*key, *sums) for key, sums in found.items())


def rates(
    parts: Sequence[Group],
    subject: Subject,
    device: Device,
    context: int,
    cache_dtype: str,
    prompt: int,
    batch: int = 1,
) -> Rates:
    """Tokens per second of a model that lies on one device, in all ``batch`` sequences together.

    ``prompt`` is the number of tokens read, after which decoding is timed.
    """
    bandwidth = (device.bandwidth or _SLOWEST_BANDWIDTH) * _BANDWIDTH_SHARE
    depth = min(prompt, context)
    layer = device.rates.get("layer", _LAYER_SECONDS) * subject.layers
    cache = subject.cache_bytes(depth, cache_dtype, subject.layers, batch) / device.rates.get("cache", bandwidth)
    decode = cache + layer + sum(_one_row(group, device, bandwidth) for group in parts)
    many = sum(2 * group.count / _peak(group, device) for group in parts if not group.once)
    square = 2 * depth * subject.layers * subject.shape.heads * subject.shape.head_dim  # half of the square is masked
    attention = square / (_peak_of("f32", device) * _PEAK_SHARE)
    return Rates(batch / decode, 1 / (many + attention + layer / 8))


def uncertainty(device: Device) -> float:
    """How far off the predicted speed may be, as a share of it."""
    if device.rates:
        return _CALIBRATED
    probed = any(c.proof is Proof.PROBE for c in device.capabilities.values())
    return _PROBED if probed else _TABLE


def _one_row(group: Group, device: Device, bandwidth: float) -> float:
    seconds = group.bytes / device.rates.get(f"{group.rung} {group.format}", bandwidth)
    if group.rung in ("torch.decode", "ref") and group.format not in _FLOATS:
        if f"{group.rung} {group.format}" in device.rates:
            return seconds
        if device.kind == "cpu":
            return seconds + group.count / _DECODED_PER_SECOND
        return seconds + 8 * group.count / bandwidth  # written once and read once more as 16- or 32-bit floats
    return seconds


def _peak(group: Group, device: Device) -> float:
    """Operations per second with many rows of activations."""
    measured = device.rates.get(f"{group.rung} {group.format} many")
    return measured or _peak_of("int8" if group.rung.startswith("numba.row") else "f32", device) * _PEAK_SHARE


def _peak_of(dtype: str, device: Device) -> float:
    return device.peaks.get(dtype) or device.peaks.get("f32") or _SLOWEST_PEAK


def split_rates(parts: Iterable[tuple[Rates, int]], layers: int) -> Rates:
    """Rates of a model split by layers: the times of the parts add, each in proportion to its layers."""
    shares = [(part, count / layers) for part, count in parts]
    return Rates(
        1 / sum(share / part.decode for part, share in shares),
        1 / sum(share / part.prefill for part, share in shares),
    )
