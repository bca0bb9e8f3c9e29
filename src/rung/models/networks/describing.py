"""Define what the descriptions of model types have in common: how they are registered, and how they take their
measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rung import formats
from rung.core.errors import BadFile
from rung.core.types import Format
from rung.models.architectures.family import MOST_LAYERS
from rung.models.card import Tensor
from rung.models.networks.values import Shape
from rung.models.settings import Settings

#: More tensors than any model has whose experts are stacked; a configuration that asks for more is absurd.
MOST_TENSORS = 2**16
#: Bytes of a weight in formats that checkpoints have and rung does not decode, by the name in safetensors files.
FOREIGN = {"F8_E4M3": 1}


class Parts:
    """The tensors of a module and of those below it; children share one list.

    ``name`` stands before the names of tensors, ``role`` before their roles, ``format`` is how weights are stored.
    """

    def __init__(self, where: str, format: str) -> None:
        self.where = where
        self.format = format
        self.name = ""
        self.role = ""
        self._tensors: list[Tensor] = []

    def __truediv__(self, name: str) -> Parts:
        """The child module ``name``."""
        return self._child(f"{self.name}{name}.", self.role)

    def _child(self, name: str, role: str) -> Parts:
        child = Parts(self.where, self.format)
        child.name, child.role, child._tensors = name, role, self._tensors
        return child

    def blocks(self, name: str, count: int, first: int = 0) -> Iterator[Parts]:
        """The repeated modules ``name.0``, ``name.1`` ...: tensors have roles ``layers.N.``, N from ``first``."""
        for index in range(count):
            yield self._child(f"{self.name}{name}.{index}.", f"{self.role}layers.{first + index}.")

    def side(self, role: str) -> Parts:
        """The same module with ``role.`` before its roles: the encoder or the decoder of a model that has both."""
        return self._child(self.name, f"{self.role}{role}.")

    def tensor(self, name: str, role: str, *shape: int, format: str | None = None) -> None:
        """A tensor as it is named in a checkpoint. Raises ``BadFile`` when there are too many."""
        if len(self._tensors) >= MOST_TENSORS:
            raise BadFile(f"{self.where} describes more than {MOST_TENSORS:,} tensors")
        stored = format or self.format
        size = tensor_bytes(stored, shape)
        self._tensors.append(Tensor(self.role + role, self.name + name, shape, stored, 0, 0, size))

    def linear(self, name: str, inner: int, outer: int, *, bias: bool = True, role: str = "linear") -> None:
        """``nn.Linear(inner, outer)``: weight [outer, inner]."""
        self.tensor(f"{name}.weight", role, outer, inner)
        if bias:
            self.tensor(f"{name}.bias", "bias" if role == "linear" else f"{role}_bias", outer)

    def conv(self, name: str, inner: int, outer: int, *kernel: int, bias: bool = True) -> None:
        """``nn.Conv1d``, ``Conv2d`` or ``Conv3d`` by the length of ``kernel``: weight [outer, inner, *kernel]."""
        self.tensor(f"{name}.weight", "conv", outer, inner, *kernel)
        if bias:
            self.tensor(f"{name}.bias", "bias", outer)

    def norm(self, name: str, width: int, *, bias: bool = True, role: str = "norm") -> None:
        """``nn.LayerNorm`` or ``GroupNorm`` with weights, or, without the bias, an RMS norm."""
        self.tensor(f"{name}.weight", role, width)
        if bias:
            self.tensor(f"{name}.bias", "norm_bias", width)

    def table(self, name: str, rows: int, width: int, role: str = "embed") -> None:
        """``nn.Embedding(rows, width)``."""
        self.tensor(f"{name}.weight", role, rows, width)

    def all(self) -> tuple[Tensor, ...]:
        """Every tensor described so far."""
        return tuple(self._tensors)


def tensor_bytes(format: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in a format of rung, or in one of ``FOREIGN``."""
    if format in FOREIGN:
        count = FOREIGN[format]
        for length in shape:
            count *= length
        return count
    found: Format = formats.get(format)
    return found.bytes(shape)


MOST_EXPERTS = 4096
#: The widest thing that is believed: no vocabulary, hidden state or feed-forward part comes near it.
MOST_WIDE = 2**24


@dataclass(frozen=True)
class Description:
    """How the tensors of one model type (``model_type`` in transformers, ``_class_name`` in diffusers) are derived.

    ``describe`` walks the modules of a configuration and returns the measures. ``defaults`` are those of the
    configuration class for absent keys; a key that is ``null`` stays so, as there. ``model`` is the class that
    a configuration without ``architectures`` stands for; ``role`` may depend on it.
    """

    model_type: str
    role: str | Callable[[Settings], str]
    describe: Callable[[Settings, Parts], Shape]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""

    def settings(self, config: Settings) -> Settings:
        """The configuration with the defaults of its class."""
        values = {**self.defaults, **config.values}
        values["architectures"] = values.get("architectures") or ([self.model] if self.model else [])
        return Settings(values, config.where)


def model_class(config: Settings) -> str:
    """The first of ``architectures``; raises ``BadFile`` when that is no list of texts."""
    names = config.raw("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.bad("architectures", names, "a list of the names of classes")
    return names[0]


def width(config: Settings, key: str, default: int | None = None) -> int:
    """A hidden size, vocabulary or the like."""
    return config.integer(key, default, most=MOST_WIDE)


def layer_count(config: Settings, key: str = "num_hidden_layers", default: int | None = None) -> int:
    """A number of repeated blocks."""
    return config.integer(key, default, most=MOST_LAYERS)


def widths(config: Settings, key: str, least: int = 1, most: int = 64) -> list[int]:
    """A list of widths (``block_out_channels``), from ``least`` to ``most`` of them."""
    found = config.raw(key)
    if not isinstance(found, list) or not least <= len(found) <= most:
        raise config.bad(key, found, f"a list of {least} to {most} whole numbers")
    return [Settings({key: value}, config.where).integer(key, most=MOST_WIDE) for value in found]


def texts(config: Settings, key: str) -> list[str]:
    """A list of names (``down_block_types``)."""
    found = config.raw(key)
    if not isinstance(found, list) or not found or not all(isinstance(value, str) for value in found):
        raise config.bad(key, found, "a list of texts")
    return found


def windows(config: Settings, layers: int, slides: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The attention window of each layer: as ``layer_types`` says, else ``slides(index)``."""
    if not config.raw("sliding_window") or config.raw("use_sliding_window") is False:
        return (None,) * layers
    span, kinds = config.integer("sliding_window"), config.raw("layer_types")
    if kinds is None:
        return tuple(span if slides(index) else None for index in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.bad("layer_types", kinds, f"a list of {layers}")
    return tuple(span if kind == "sliding_attention" else None for kind in kinds)
