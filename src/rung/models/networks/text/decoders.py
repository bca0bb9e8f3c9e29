"""The decoders that ``rung run`` builds, from a configuration alone: names and shapes as their files have them."""

from __future__ import annotations

from dataclasses import replace

from rung.core.errors import BadFile
from rung.models import architectures
from rung.models.architectures.family import Architecture
from rung.models.card import Decoder
from rung.models.networks.parts import Parts
from rung.models.roles import shape_of
from rung.models.settings import Settings


def check_measures(config: Settings) -> None:
    """Raises ``BadFile`` for a configuration without what every published one has: a guess would be another model."""
    for key in ("hidden_size", "num_hidden_layers"):
        if key not in config:
            raise BadFile(f"{config.where} has no {key}", ["so nothing says how large the model is"])


def decoder_of(model: Architecture, top: Settings, config: Settings) -> Decoder:
    """The decoder of a configuration: whether it has biases and a head of its own is what its files will say."""
    check_measures(config)
    biases = [role for role in model.names(config).values() if role.endswith("_bias")]
    return replace(
        model.from_config(config),
        tied_head=top.flag("tie_word_embeddings", model.tied),
        attention_bias="q_bias" in biases,
    )


def describe(model: Architecture, config: Settings, decoder: Decoder, parts: Parts, prefix: str = "model.") -> None:
    """Names every tensor of the decoder; ``prefix`` is what stands before ``layers``."""
    parts.tensor(f"{prefix}embed_tokens.weight", "embed", *shape_of("embed", decoder))
    names = model.names(config).items()
    for block in parts.blocks(f"{prefix}layers", len(decoder.layers)):
        for name, role in names:
            block.tensor(name, role, *shape_of(role, decoder))
    parts.tensor(f"{prefix}norm.weight", "norm", *shape_of("norm", decoder))
    if not decoder.tied_head:
        parts.tensor("lm_head.weight", "head", *shape_of("head", decoder))


def model_types() -> tuple[str, ...]:
    """The model types described here."""
    return (*architectures.MODEL_TYPES, "gemma3")
