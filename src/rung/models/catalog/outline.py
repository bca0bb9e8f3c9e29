"""From a row of the table, or from a size alone, to an outline and a card without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rung.core.errors import ModelNotFound
from rung.models.card import ModelCard
from rung.models.cards.folder import NetworkCard
from rung.models.catalog.names import Match
from rung.models.catalog.rows import KnownModel, known_models
from rung.models.networks.component import describe
from rung.models.networks.values import Component, Outline, plain

#: Model types whose rows may stand for a dense model of which only the size is known.
_DENSE = ("llama", "qwen2", "qwen3", "mistral")
#: Weights that k-quants store together in a row: no row of another width has a fast kernel.
_BLOCK = 256
#: So many of the nearest models are tried for that, and the count of weights may be off by this share.
_NEAREST, _OFF = 8, 0.01
#: Widths are multiples of it where no known model of that size has multiples of ``_BLOCK``.
_STEP = 64


def outline_of(match: Match, describing: Callable[[Mapping[str, Any], str], Component] = describe) -> Outline:
    """Return the outline of a model of the catalog, or of a dense model of the size that was asked for.

    Its ``path`` is the repository of its weights, for commands that run it; of a size alone it is the size.
    """
    if match.model is None:
        found = describing(dense_config(match.size), match.name)
        return plain(match.name, "size", match.name, found)
    model = match.model
    outline = plain(model.name, "config", model.weights, describing(model.config(), model.name))
    return replace(outline, title=model.title, gguf=model.gguf)


def card_of(outline: Outline) -> ModelCard | NetworkCard:
    """Return a card that plans take, of a model of the catalog: without files and tokenizer, so nothing runs it."""
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
    """Return the configuration of a dense decoder with about ``size`` weights: a known one near it, its feed-forward
    part made wider or narrower. Its widths are multiples of ``_BLOCK`` where a known model allows that, so that it has
    the kernels that models of its size have. Raises ``ModelNotFound`` for a size that no dense model comes near."""
    dense = [model for model in known_models() if model.model_type in _DENSE]
    dense.sort(key=lambda model: max(model.parameters / size, size / model.parameters))
    for model in dense[:_NEAREST]:
        config = _widened(model, size, _BLOCK)
        if config is not None and abs(describe(config, model.name).parameters / size - 1) <= _OFF:
            return config
    config = _widened(dense[0], size, _STEP)
    if config is None:
        raise ModelNotFound(
            f"No dense model of {size / 1e9:,.3g} billion weights is known, so its shape cannot be guessed.",
            [f"the known ones have {_billions(dense)} billion"],
            ["rung check 8b"],
        )
    return config


def _widened(model: KnownModel, size: int, step: int) -> dict[str, Any] | None:
    """The configuration with a feed-forward part that makes ``size`` weights of it, a multiple of ``step`` wide.

    None where a width is no such multiple, and where no decoder has such a feed-forward part.
    """
    config = model.config() | {"model_type": "llama"}
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    attention = config["num_attention_heads"] * (config.get("head_dim") or hidden // config["num_attention_heads"])
    wider = (size - describe(config, model.name).parameters) / (3 * layers * hidden)
    width = round((config["intermediate_size"] + wider) / step) * step
    if hidden % step or attention % step or not hidden <= width <= 16 * hidden:
        return None
    return config | {"intermediate_size": width}


def _billions(models: list[Any]) -> str:
    sizes = [model.parameters / 1e9 for model in models]
    return f"{min(sizes):.2g} to {max(sizes):,.0f}"
