"""From a row of the table, or from a size alone, to an outline and a card without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rung.core.errors import ModelNotFound
from rung.models.card import ModelCard
from rung.models.cards.network import NetworkCard
from rung.models.catalog.names import Match
from rung.models.catalog.rows import known_models
from rung.models.networks.component import describe
from rung.models.networks.values import Component, Outline, plain

#: Model types whose rows may stand for a dense model of which only the size is known.
_DENSE = ("llama", "qwen2", "qwen3", "mistral")
#: Widths of feed-forward parts are multiples of it.
_STEP = 64


def outline_of(match: Match, describing: Callable[[Mapping[str, Any], str], Component] = describe) -> Outline:
    """Return the outline of a model of the catalogue, or of a dense model of the size that was asked for.

    Its ``path`` is the repository of its weights, for commands that run it; of a size alone it is the size.
    """
    if match.model is None:
        found = describing(dense_config(match.size), match.name)
        return plain(match.name, "size", match.name, found)
    model = match.model
    made = plain(model.name, "config", model.weights, describing(model.config(), model.name))
    return replace(made, title=model.title, gguf=model.gguf)


def card_of(outline: Outline) -> ModelCard | NetworkCard:
    """Return a card that plans take, of a model of the catalogue: without files and tokenizer, so nothing runs it."""
    (component,) = outline.components
    if component.decoder is None:
        return NetworkCard(outline.name, outline.path, component, "", "", "", None, (), None, False)
    return ModelCard(
        name=outline.name,
        kind=outline.kind,
        path=outline.path,
        files=(),
        decoder=component.decoder,
        tensors=component.tensors,
        tokenizer="",
        chat_template=None,
        end_tokens=(),
        bos_token=None,
        add_bos=False,
    )


def dense_config(size: int) -> dict[str, Any]:
    """Return the configuration of a dense decoder with about ``size`` weights: the nearest known one, its feed-forward
    part made wider or narrower. Raises ``ModelNotFound`` for a size that no dense model comes near."""
    dense = [model for model in known_models() if model.model_type in _DENSE]
    nearest = min(dense, key=lambda model: max(model.parameters / size, size / model.parameters))
    config = nearest.config() | {"model_type": "llama"}
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    wider = (size - describe(config, nearest.name).parameters) / (3 * layers * hidden)
    width = round((config["intermediate_size"] + wider) / _STEP) * _STEP
    if not hidden <= width <= 16 * hidden:
        raise ModelNotFound(
            f"No dense model of {size / 1e9:,.3g} billion weights is known, so its shape cannot be guessed.",
            [f"the known ones have {_billions(dense)} billion"],
            ["rung check 8b"],
        )
    return config | {"intermediate_size": width}


def _billions(models: list[Any]) -> str:
    sizes = [model.parameters / 1e9 for model in models]
    return f"{min(sizes):.2g} to {max(sizes):,.0f}"
