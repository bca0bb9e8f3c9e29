"""Frequencies of rotary position embeddings, with every scaling already in them.

From Hugging Face configurations the arithmetic is that of transformers (``modeling_rope_utils``), in f32 step by
step, so that the values are equal; from GGUF files the formulas are those of ggml (``ggml_rope_ext``), whose powers
are rounded a little differently because it multiplies them up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.card import Rope

Floats = npt.NDArray[np.float32]
ONE = np.float32(1.0)

#: Rotation counts between which yarn ramps from extrapolation to interpolation (arXiv:2309.00071).
BETA_FAST, BETA_SLOW = 32.0, 1.0
SCALINGS = ("linear", "llama3", "yarn", "longrope", "dynamic")


def plain(base: float, dims: int) -> Floats:
    """base^(-2i/dims) for i in 0 ... dims/2, f32."""
    return np.divide(ONE, positive_powers(base, dims), dtype=np.float32)


def positive_powers(base: float, dims: int) -> Floats:
    """base^(2i/dims), f32."""
    exponents: Floats = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    if not 1 < base < 2.0**100:
        raise BadFile(f"the base of the rotary embedding is {base:g}, which makes no frequencies")
    return np.power(np.float32(base), exponents, dtype=np.float32)


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
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise BadFile(f"{self.where}: {key} of the rope scaling is {str(value)[:40]}, not a number above zero")
        return float(value)

    def given(self, key: str) -> float | None:
        """The number, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.number(key)

    def factors(self, key: str) -> Floats:
        """A list of dims/2 positive numbers. Raises ``BadFile``."""
        values = self.values.get(key)
        if not isinstance(values, list) or len(values) != self.dims // 2:
            found = f"{len(values)} numbers" if isinstance(values, list) else str(values)[:40]
            raise BadFile(f"{self.where}: {key} of the rope scaling is {found}, not a list of {self.dims // 2} numbers")
        if not all(isinstance(value, (int, float)) and 0 < value < math.inf for value in values):
            raise BadFile(f"{self.where}: {key} of the rope scaling holds what is no number above zero")
        return np.array(values, np.float32)


def from_config(kind: str, scaling: Scaling) -> Rope:
    """The rope of a Hugging Face configuration; ``kind`` is its ``rope_type``.

    Raises ``UnknownArchitecture`` for a scaling that rung does not compute, ``BadFile`` for parameters that are
    missing or make no frequencies.
    """
    inverse, magnitude = plain(scaling.base, scaling.dims), 1.0
    if kind == "longrope":
        return _longrope(scaling)
    if kind == "linear":
        inverse = inverse / np.float32(scaling.number("factor"))
    elif kind == "llama3":
        inverse = _llama3(scaling, inverse)
    elif kind == "yarn":
        inverse, magnitude = _yarn(scaling)
    elif kind not in ("default", "dynamic"):  # dynamic changes nothing within the model's context
        raise UnknownArchitecture(f"rung does not compute the rope scaling {kind!r}", [f"known: {', '.join(SCALINGS)}"])
    return Rope(scaling.dims, False, _values(inverse), magnitude)


def _values(inverse: npt.NDArray[Any]) -> tuple[float, ...]:
    if not np.isfinite(inverse).all():
        raise BadFile("the parameters of the rotary embedding make no finite frequencies")
    return tuple(inverse.astype(np.float32).tolist())


def _longrope(scaling: Scaling) -> Rope:
    powers = positive_powers(scaling.base, scaling.dims)
    factor = scaling.given("factor") or scaling.context / scaling.original
    magnitude = scaling.given("attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(scaling.original)) if factor > 1 else 1.0
    return Rope(
        scaling.dims,
        False,
        _values(ONE / (scaling.factors("short_factor") * powers)),
        magnitude,
        _values(ONE / (scaling.factors("long_factor") * powers)),
        magnitude,
        scaling.original,
    )


def _llama3(scaling: Scaling, inverse: Floats) -> Floats:
    factor, low, high = scaling.number("factor"), scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise BadFile(f"{scaling.where}: high_freq_factor of the rope scaling is not above low_freq_factor")
    length = np.float32(2 * math.pi) / inverse
    scaled = np.where(length > np.float32(scaling.original / low), inverse / np.float32(factor), inverse)
    smooth = (np.float32(scaling.original) / length - np.float32(low)) / np.float32(high - low)
    between = (ONE - smooth) * scaled / np.float32(factor) + smooth * scaled
    medium = (length >= np.float32(scaling.original / high)) & (length <= np.float32(scaling.original / low))
    return np.where(medium, between, scaled)


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


def _yarn(scaling: Scaling) -> tuple[Floats, float]:
    factor = scaling.given("factor") or scaling.context / scaling.original
    magnitude = scaling.given("attention_factor")
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
        scaling.given("beta_fast") or BETA_FAST,
        scaling.given("beta_slow") or BETA_SLOW,
        bool(scaling.values.get("truncate", True)),
    )
    high = high + 0.001 if low == high else high
    ramp = (np.arange(scaling.dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = ONE - np.clip(ramp, 0, 1)
    powers = positive_powers(scaling.base, scaling.dims)
    stretched, original = ONE / (np.float32(factor) * powers), ONE / powers
    return stretched * (ONE - keep) + original * keep, magnitude


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
    stretch = np.float32(1.0 / factor)

    def scaled(dividers: Sequence[float]) -> tuple[float, ...]:
        theta = inverse / np.array(dividers, np.float32) if len(dividers) else inverse
        if kind != "yarn":
            return _values(theta * stretch if factor != 1.0 else theta)
        low, high = correction_range(dims, base, original, BETA_FAST, BETA_SLOW, whole=True)
        ramp = (np.arange(dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(max(0.001, high - low))
        keep = ONE - np.clip(ramp, 0, 1)
        return _values(theta * stretch * (ONE - keep) + theta * keep)

    if kind == "yarn":
        magnitude *= _mscale(factor)
    long = scaled(long_factors) if len(long_factors) else ()
    return Rope(
        dims, interleaved, scaled(factors), magnitude, long, magnitude if long else 1.0, original if long else 0
    )
