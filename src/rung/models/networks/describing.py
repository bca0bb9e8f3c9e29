"""Define what the descriptions of model types have in common: how they are registered, and how they take their
measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rung.models.architectures.family import MOST_LAYERS
from rung.models.networks.parts import Parts
from rung.models.networks.values import Shape
from rung.models.settings import Settings

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
