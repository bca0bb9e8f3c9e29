"""Quantized checkpoints, of others and of rung itself: their tensors together make weights in formats of rung.

One module a method (``values.Method``). From headers alone: ``gather``; from values: ``read``. Every value of a weight
is what the method's own package decodes, bit for bit in the dtype that it decodes to.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rung import formats
from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.value import Value
from rung.models.checkpoints.values import OTHER_COPY, OWN, Header, Method, Raw, StoredWeight

if TYPE_CHECKING:
    from rung.formats import Encoded

__all__ = ["METHODS", "OWN", "Header", "Raw", "StoredWeight", "Weight", "gather", "method_of", "read"]

#: quant_method of a config -> module of this package.
METHODS = {
    "bitsandbytes": "bitsandbytes",
    "gptq": "gptq",
    "awq": "awq",
    "compressed-tensors": "compressed",
    "fp8": "fp8",
    "mxfp4": "mxfp4",
    "hqq": "hqq",
}
_MODULES = {**METHODS, OWN: "rung_folder"}


@dataclass(frozen=True)
class Weight(Value):
    """A weight of a checkpoint: its ``name`` as an unquantized one would have it, and its parts' names in the files."""

    name: str
    stored: StoredWeight
    parts: tuple[tuple[str, str], ...]

    @property
    def bytes(self) -> int:
        """Bytes as rung holds it."""
        return formats.get(self.stored.format).bytes(self.stored.shape)


def method_of(config: Mapping[str, Any], where: str) -> str:
    """The method of a quantization config. Raises ``UnknownArchitecture`` for one that rung does not read."""
    method = config.get("quant_method")
    if method is None and (config.get("load_in_4bit") or config.get("load_in_8bit")):
        method = "bitsandbytes"
    if not isinstance(method, str) or method not in _MODULES:
        raise UnknownArchitecture(
            f"{where} is quantized" + (f" with {str(method)[:40]}" if method else ""),
            [f"rung reads checkpoints of {', '.join(_MODULES)}"],
            OTHER_COPY,
            code="quantization-unknown",
        )
    return method


def _module(method: str) -> Method:
    return cast(Method, importlib.import_module(f"rung.models.checkpoints.{_MODULES[method]}"))


def suffixes(method: str) -> Mapping[str, str]:
    """Return the endings of a method's tensor names, each with the part of a weight that it is."""
    return _module(method).SUFFIXES


def gather(
    method: str, config: Mapping[str, Any], headers: Iterable[Header], peek: Callable[[str], Raw]
) -> tuple[list[Weight], list[Header]]:
    """The quantized weights among the tensors of a checkpoint, and the tensors that are stored as they are.

    ``peek(name)`` reads a small tensor. Raises ``BadFile`` where tensors contradict the config or each other, and
    ``UnknownArchitecture`` for a variant of the method that rung does not read.
    """
    module = _module(method)
    ordered = sorted(module.SUFFIXES, key=len, reverse=True)
    groups: dict[str, dict[str, Header]] = {}
    plain: list[Header] = []
    for header in headers:
        suffix = next((s for s in ordered if header.name.endswith(s)), None)
        if suffix is None:
            plain.append(header)
            continue
        parts = groups.setdefault(header.name.removesuffix(suffix), {})
        if (part := module.SUFFIXES[suffix]) in parts:
            raise BadFile(f"{parts[part].name} and {header.name} are the same part of a weight")
        parts[part] = header
    weights = []
    for stem, parts in groups.items():
        found = describe(method, config, _name(method, stem), parts, lambda part, p=parts: peek(p[part].name))  # type: ignore[misc]
        if found is None:
            plain += [header for part, header in parts.items() if not part.startswith("activations")]
        else:
            named = tuple((part, header.name) for part, header in parts.items())
            weights.append(Weight(_name(method, stem), found, named))
    return weights, plain


def _name(method: str, stem: str) -> str:
    return stem if method == "mxfp4" else f"{stem}.weight"


def describe(
    method: str, config: Mapping[str, Any], name: str, parts: Mapping[str, Header], peek: Callable[[str], Raw]
) -> StoredWeight | None:
    """How a weight of these parts is held; None for tensors that are stored as they are."""
    module = _module(method)
    found = module.stored_weight(config, name, parts, peek) if module.KEY in parts else None
    if found is not None and 0 in found.shape:
        raise BadFile(f"{name} has no weights: its shape is {list(found.shape)}")
    return found


def read(method: str, stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """The weight [rows, columns] of those parts; of three dimensions the first two are rows."""
    encoded = _module(method).read(stored, parts, name)
    assert encoded.shape == (math.prod(stored.shape[:-1]), stored.shape[-1])
    return encoded
