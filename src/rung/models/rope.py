"""Frequencies of rotary position embeddings, with every scaling already in them.

From Hugging Face configurations the arithmetic is that of transformers (``modeling_rope_utils``), whose tensors are
f32: each of its steps is computed in f64 and rounded, which gives what f32 gives. From GGUF files the formulas are
those of ggml (``ggml_rope_ext``), whose powers are rounded a little differently because it multiplies them up.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.card import Rope

#: Rotation counts between which yarn ramps from extrapolation to interpolation (arXiv:2309.00071).
BETA_FAST, BETA_SLOW = 32.0, 1.0
#: Whole numbers above it are no floats.
_LARGEST = sys.float_info.max
SCALINGS = ("linear", "llama3", "yarn", "longrope", "dynamic")


#: Dimensions of a head that may rotate; models have up to 512. A table of more would be made for nothing.
MOST_DIMS = 2**16


def _f32(values: Iterable[float]) -> array[float]:
    """The values rounded to f32."""
    return array("f", values)


def _inverse(values: Iterable[float]) -> array[float]:
    """1 / value, f32; infinite where a value is zero."""
    return _f32(1 / value if value else math.inf for value in values)


def plain(base: float, dims: int) -> array[float]:
    """base^(-2i/dims) for i in 0 ... dims/2, f32."""
    return _inverse(positive_powers(base, dims))


def positive_powers(base: float, dims: int) -> array[float]:
    """base^(2i/dims), f32."""
    if not 1 < base < 2.0**100:
        raise BadFile(f"The base of the rotary embedding is {base:g}, which makes no frequencies")
    return _f32(base**exponent for exponent in _f32(index / dims for index in range(0, dims, 2)))


@dataclass(frozen=True)
class Scaling:
    """The parameters of one rope of a configuration: its ``values`` and what the formulas need beside them."""

    values: Mapping[str, Any]
    base: float
    dims: int
    context: int
    original: int
    where: str = "config.json"

    def number(self, key: str) -> float:
        """A positive finite number that the formula cannot do without. Raises ``BadFile``."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _LARGEST:
            raise BadFile(f"{self.where}: {key} of the rope scaling is {str(value)[:40]}, not a number above zero")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """The number, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.number(key)

    def factors(self, key: str) -> array[float]:
        """A list of dims/2 positive numbers. Raises ``BadFile``."""
        values = self.values.get(key)
        if not isinstance(values, list) or len(values) != self.dims // 2:
            found = f"{len(values)} numbers" if isinstance(values, list) else str(values)[:40]
            raise BadFile(f"{self.where}: {key} of the rope scaling is {found}, not a list of {self.dims // 2} numbers")
        if not all(isinstance(value, (int, float)) and 0 < value <= _LARGEST for value in values):
            raise BadFile(f"{self.where}: {key} of the rope scaling holds what is no number above zero")
        return _f32(values)


def from_config(kind: str, scaling: Scaling) -> Rope:
    """The rope of a Hugging Face configuration; ``kind`` is its ``rope_type``.

    Raises ``UnknownArchitecture`` for a scaling that rung does not compute, ``BadFile`` for parameters that are
    missing or make no frequencies.
    """
    inverse: Sequence[float] = plain(scaling.base, scaling.dims)
    magnitude = 1.0
    if kind == "longrope":
        return _longrope(scaling)
    if kind == "linear":
        factor = scaling.number("factor")
        inverse = _f32(value / factor for value in inverse)
    elif kind == "llama3":
        inverse = _llama3(scaling, inverse)
    elif kind == "yarn":
        inverse, magnitude = _yarn(scaling)
    elif kind not in ("default", "dynamic"):  # dynamic changes nothing within the model's context
        raise UnknownArchitecture(f"rung does not compute the rope scaling {kind!r}", [f"known: {', '.join(SCALINGS)}"])
    return Rope(scaling.dims, False, _values(inverse), magnitude)


def _values(inverse: Iterable[float]) -> tuple[float, ...]:
    values = tuple(_f32(inverse))
    if not all(map(math.isfinite, values)):
        raise BadFile("The parameters of the rotary embedding make no finite frequencies")
    return values


def _longrope(scaling: Scaling) -> Rope:
    powers = positive_powers(scaling.base, scaling.dims)
    factor = scaling.optional_number("factor") or scaling.context / scaling.original
    magnitude = scaling.optional_number("attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(scaling.original)) if factor > 1 else 1.0
    return Rope(
        scaling.dims,
        False,
        _divided(scaling.factors("short_factor"), powers),
        magnitude,
        _divided(scaling.factors("long_factor"), powers),
        magnitude,
        scaling.original,
    )


def _divided(factors: Iterable[float], powers: Iterable[float]) -> tuple[float, ...]:
    return _values(_inverse(_f32(factor * power for factor, power in zip(factors, powers, strict=True))))


def _llama3(scaling: Scaling, inverse: Iterable[float]) -> array[float]:
    factor, low, high = scaling.number("factor"), scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise BadFile(f"{scaling.where}: high_freq_factor of the rope scaling is not above low_freq_factor")

    def scaled(value: float) -> float:
        length = 2 * math.pi / value
        if length < scaling.original / high:
            return value
        if length > scaling.original / low:
            return value / factor
        smooth = (scaling.original / length - low) / (high - low)
        return (1 - smooth) * value / factor + smooth * value

    return _f32(map(scaled, inverse))


def _mscale(factor: float, times: float = 1.0) -> float:
    return 0.1 * times * math.log(factor) + 1.0 if factor > 1 else 1.0


def correction_range(
    dims: int, base: float, original: int, fast: float, slow: float, whole: bool
) -> tuple[float, float]:
    """The dimensions between which yarn ramps; ``whole``: rounded outwards (arXiv:2309.00071, section 3.2)."""

    def dimension(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(fast), dimension(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dims - 1)


def _yarn(scaling: Scaling) -> tuple[array[float], float]:
    factor = scaling.optional_number("factor") or scaling.context / scaling.original
    magnitude = scaling.optional_number("attention_factor")
    if magnitude is None:
        numerator, denominator = scaling.values.get("mscale"), scaling.values.get("mscale_all_dim")
        if numerator and denominator:
            magnitude = _mscale(factor, scaling.number("mscale")) / _mscale(factor, scaling.number("mscale_all_dim"))
        else:
            magnitude = _mscale(factor)
    low, high = correction_range(
        scaling.dims,
        scaling.base,
        scaling.original,
        scaling.optional_number("beta_fast") or BETA_FAST,
        scaling.optional_number("beta_slow") or BETA_SLOW,
        bool(scaling.values.get("truncate", True)),
    )
    high = high + 0.001 if low == high else high
    powers = positive_powers(scaling.base, scaling.dims)
    stretched, original = _inverse(factor * power for power in powers), _inverse(powers)
    return _ramped(stretched, original, low, high), magnitude


def _ramped(stretched: Iterable[float], original: Sequence[float], low: float, high: float) -> array[float]:
    """yarn: the first frequencies as they were, the last stretched, mixed between the dimensions low and high."""
    first, width = _f32((low, high - low))
    ramp = _f32(position / width for position in _f32(index - first for index in range(len(original))))
    keep = _f32(1 - min(max(value, 0), 1) for value in ramp)
    old = _f32(value * share for value, share in zip(original, keep, strict=True))
    new = _f32(value * share for value, share in zip(stretched, _f32(1 - share for share in keep), strict=True))
    return _f32(map(sum, zip(new, old, strict=True)))


def from_gguf(
    dims: int,
    base: float,
    *,
    interleaved: bool,
    kind: str = "linear",
    factor: float = 1.0,
    original: int,
    magnitude: float = 1.0,
    factors: Sequence[float] = (),
    long_factors: Sequence[float] = (),
) -> Rope:
    """The rope of a GGUF file, as ggml computes it.

    ``factor`` stretches positions (``rope.scaling.factor``); ``factors`` (``rope_freqs``, or ``rope_factors_short``)
    divide frequencies one by one, ``long_factors`` do in contexts above ``original``; ``magnitude`` is
    ``rope.scaling.attn_factor``.
    """
    inverse = plain(base, dims)

    def scaled(dividers: Sequence[float]) -> tuple[float, ...]:
        if dividers and len(dividers) != len(inverse):
            raise BadFile(f"{len(dividers)} divisors for the {len(inverse)} frequencies of the rotary embedding")
        theta = [value / by for value, by in zip(inverse, dividers, strict=True)] if dividers else inverse
        stretched = [value / factor for value in theta]
        if kind != "yarn":
            return _values(stretched)
        low, high = correction_range(dims, base, original, BETA_FAST, BETA_SLOW, whole=True)
        return _values(_ramped(stretched, theta, low, max(high, low + 0.001)))

    if kind == "yarn":
        magnitude *= _mscale(factor)
    long = scaled(long_factors) if long_factors else ()
    return Rope(
        dims, interleaved, scaled(factors), magnitude, long, magnitude if long else 1.0, original if long else 0
    )
