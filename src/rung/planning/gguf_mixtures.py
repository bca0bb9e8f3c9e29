"""llama.cpp's mixtures of formats: which tensors ``llama-quantize`` stores finer in a Q4_K_M file.

The rules are those of llama.cpp's ``src/llama-quant.cpp`` (2026), written anew as a table; the published sizes of
Llama 3.1 8B in its ``tools/quantize/README.md`` are held against them in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rung import formats
from rung.core.errors import UnknownFormat
from rung.core.text import did_you_mean
from rung.core.types import Format
from rung.core.value import Value


@dataclass(frozen=True)
class TensorPosition(Value):
    """Where a tensor stands: its role without the layer, the layer of how many, and what the rules ask of the model.

    ``shared`` is the number of query heads for each key head.
    """

    role: str
    columns: int
    layer: int = 0
    layers: int = 1
    shared: int = 1
    experts: int = 0
    tied: bool = False
    large: bool = False

    @property
    def spread(self) -> bool:
        """Layers that the _M mixtures store finer: the outer eighths, and each third between."""
        eighth = self.layers // 8
        return self.layer < eighth or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2

    @property
    def early(self) -> bool:
        """The first eighth of the layers."""
        return self.layer < self.layers // 8


Rule = Callable[[TensorPosition], str | None]


def _shared(finer: str, otherwise: str | None = None) -> Rule:
    """``finer`` for values that four or more query heads read."""
    return lambda position: finer if position.shared >= 4 else otherwise


def _when(test: Callable[[TensorPosition], bool], finer: str, otherwise: str | None = None) -> Rule:
    return lambda position: finer if test(position) else otherwise


def _always(finer: str) -> Rule:
    return lambda position: finer


_SPREAD = _when(lambda tensor: tensor.spread, "q6_k")
_MIDDLE = _when(lambda p: p.layers // 8 <= p.layer < 7 * p.layers // 8, "iq3_xxs")
_EARLY = _when(lambda tensor: tensor.early, "q5_k")
_LOW = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m")


def _low(finer: str, output: str | None) -> Mapping[str, Rule]:
    """The rules of the mixtures of two bits and less."""
    values = _when(lambda position: position.shared >= 4 or position.experts >= 4, "q4_k", finer)
    outputs: Rule = lambda position: "q5_k" if position.experts == 8 else output  # noqa: E731
    keys = _when(lambda position: position.experts == 8, "q4_k")
    return {"v": values, "qkv": values, "k": keys, "o": outputs, "down": _when(lambda p: p.early, finer)}


#: By mixture: the format of most tensors, and the finer ones by role.
_RULES: dict[str, tuple[str, Mapping[str, Rule]]] = {
    "iq1_s": ("iq1_s", _low("q2_k", "iq2_xxs")),
    "iq1_m": ("iq1_m", _low("q2_k", "iq2_xxs")),
    "iq2_xxs": ("iq2_xxs", _low("q2_k", None)),
    "iq2_xs": ("iq2_xs", _low("q2_k", None)),
    "iq2_s": ("iq2_xs", _low("iq3_s", "iq3_s")),
    "iq2_m": ("iq2_s", _low("iq3_s", "iq3_s")),
    "iq3_xxs": (
        "iq3_xxs",
        {"v": _shared("q4_k", "iq3_xxs"), "k": _always("iq2_s"), "q": _always("iq2_s"), "o": _always("iq3_s")},
    ),
    "iq3_xs": (
        "iq3_s",
        {
            "v": _shared("q4_k"),
            "k": _always("iq3_xxs"),
            "q": _always("iq3_xxs"),
            "gate": _MIDDLE,
            "up": _MIDDLE,
            "gate_up": _MIDDLE,
        },
    ),
    "iq3_s": ("iq3_s", {"v": _shared("q4_k")}),
    "iq3_m": (
        "iq3_s",
        {
            "v": _always("q4_k"),
            "o": _always("q4_k"),
            "qkv": _always("q4_k"),
            "down": _when(lambda p: p.early or (p.experts == 8 and p.spread), "q4_k"),
        },
    ),
    "q2_k_s": ("q2_k", {"v": _shared("q4_k"), "down": _when(lambda p: p.early, "q4_k")}),
    "q2_k": ("q2_k", {"v": _shared("q4_k", "q3_k"), "down": _always("q3_k"), "o": _always("q3_k")}),
    "q3_k_s": ("q3_k", {}),
    "q3_k_m": (
        "q3_k",
        {
            "v": _when(lambda p: p.layer < 2, "q5_k", "q4_k"),
            "qkv": _always("q4_k"),
            "o": _always("q4_k"),
            "down": _when(lambda p: p.layer < p.layers // 16, "q5_k", "q4_k"),
        },
    ),
    "q3_k_l": (
        "q3_k",
        {"v": _always("q5_k"), "down": _always("q5_k"), "o": _always("q5_k"), "qkv": _always("q4_k")},
    ),
    "iq4_xs": ("iq4_xs", {"v": _shared("q5_k"), "down": _EARLY}),
    "iq4_nl": ("iq4_nl", {"v": _shared("q5_k"), "down": _EARLY}),
    "q4_0": ("q4_0", {}),
    "q4_1": ("q4_1", {}),
    "q4_k_s": (
        "q4_k",
        {"v": _when(lambda p: p.layer < 4, "q5_k"), "down": _EARLY},
    ),
    "q4_k_m": ("q4_k", {"v": _SPREAD, "down": _SPREAD, "qkv": _always("q5_k")}),
    "q5_0": ("q5_0", {}),
    "q5_1": ("q5_1", {}),
    "q5_k_s": ("q5_k", {}),
    "q5_k_m": ("q5_k", {"v": _SPREAD, "down": _SPREAD, "qkv": _always("q6_k")}),
    "tq1_0": ("tq1_0", {}),
    "tq2_0": ("tq2_0", {}),
}
#: What an embedding that is no head gets in the coarsest mixtures.
_EMBEDDINGS = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs"), "q2_k"),
    **dict.fromkeys(("iq2_s", "iq2_m", "iq3_xxs"), "iq3_s"),
    **dict.fromkeys(("tq1_0", "tq2_0"), "q4_k"),
}
#: What a row that blocks of 256 do not divide is stored in instead; f16 where 32 do not divide it either.
_INSTEAD = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
_EXPERTS = {"experts_gate_up": "gate_up", "experts_down": "down", "shared_down": "down", "experts_gate": "gate"}
_WITH_EIGHT_EXPERTS = {"v": "q8_0", "k": "q8_0"}


@dataclass(frozen=True)
class Mixture(Value):
    """A mixture by llama.cpp's name, in small letters."""

    name: str

    @property
    def base(self) -> Format:
        """The format of most tensors."""
        return formats.get(_RULES[self.name][0])

    def format_at(self, position: TensorPosition) -> Format:
        """The format of the tensor at that place."""
        chosen = formats.get(self._finer(position) or self.base.name)
        if chosen.divides(position.columns):
            return chosen
        instead = formats.get(_INSTEAD.get(chosen.name, chosen.name))
        return instead if instead.divides(position.columns) else formats.get("f16")

    def _finer(self, position: TensorPosition) -> str | None:
        role = _EXPERTS.get(position.role, position.role)
        if role == "head" or (role == "embed" and position.tied):
            return "q5_k" if self.name in _LOW or self.name == "iq3_xxs" else "q6_k"
        if role == "embed":
            return _EMBEDDINGS.get(self.name)
        if position.experts == 8 and self.name not in _LOW and role in _WITH_EIGHT_EXPERTS:
            return _WITH_EIGHT_EXPERTS[role]
        if position.experts == 8 and self.name not in _LOW and role == "o":
            return "q5_k" if self.base.bits < 5 and self.name not in ("q4_0", "q4_1", "q3_k_l") else None
        rule = _RULES[self.name][1].get(role)
        found = rule(position) if rule else None
        finer = (
            position.large and role == "v" and self.name not in _LOW and (found or self.base.name) in ("q3_k", "q4_k")
        )
        return "q5_k" if finer else found


#: All that llama-quantize writes.
LLAMA_CPP = tuple(_RULES)
#: Those that are no format which rung encodes by itself: ``q4_k_m``, and ``q2_k``, which is both.
MIXTURES = tuple(name for name in _RULES if name not in formats.FORMATS.own or not formats.FORMATS[name].encodes)


def storage(name: str) -> Format | Mixture:
    """The format or the mixture of that name, in any case.

    Raises ``UnknownFormat`` with the names that look alike.
    """
    normalized = name.strip().lower()
    if normalized in MIXTURES:
        return Mixture(normalized)
    try:
        return formats.get(name)
    except UnknownFormat as error:
        if ":" in normalized:
            raise
        known = list(dict.fromkeys([*(key.split(":")[0] for key in formats.FORMATS), *MIXTURES]))
        raise UnknownFormat(
            f"There is no format {name!r}.{did_you_mean(normalized, known)}", (), error.ways_out
        ) from None
