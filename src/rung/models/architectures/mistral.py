"""Mistral: Llama with a sliding window in all layers, and no biases. Its GGUF files go by ``llama``."""

from __future__ import annotations

from rung.models.architectures import family
from rung.models.architectures.family import Architecture
from rung.models.card import Decoder
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    return family.LAYER_NAMES


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    # here alone a null means a head for keys of every head, and an absent key means 8
    heads = {"num_key_value_heads": None} if config.raw("num_key_value_heads", 8) is None else {}
    count, span = family.layer_count(config, DEFAULTS), family.window(config, 4096)
    return family.decoder(
        config,
        "mistral",
        DEFAULTS | heads,
        # transformers' class gives every layer the window, whatever layer_types says
        layers=family.layers(Settings({}, config.where), count, span, lambda index: True),
        ropes=(family.config_rope(config, DEFAULTS),),
    )


ARCHITECTURE = Architecture("mistral", names, from_config, network="Mistral", ends=(2,), bos=1, adds_bos=True)
