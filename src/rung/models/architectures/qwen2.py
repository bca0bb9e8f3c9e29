"""Qwen 2 and 2.5: biases on q, k and v."""

from __future__ import annotations

from rung.models.architectures import family
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder, Layer
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    return family.LAYER_NAMES | family.ATTENTION_BIAS_NAMES


def heads(config: Settings) -> dict[str, int | None]:
    """The default of ``num_key_value_heads``: 32 where the key is absent, all heads where it is null."""
    return {"num_key_value_heads": None} if config.raw("num_key_value_heads", 32) is None else {}


def layers(config: Settings, count: int) -> tuple[Layer, ...]:
    """The layers; those from ``max_window_layers`` on have a window where ``use_sliding_window`` is true."""
    span = family.window(config, 4096) if config.flag("use_sliding_window", False) else None
    first = config.integer("max_window_layers", 28, least=0)
    return family.layers(config, count, span, lambda index: index >= first)


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    return family.decoder(
        config,
        "qwen2",
        DEFAULTS | heads(config),
        layers=layers(config, family.layer_count(config, DEFAULTS)),
        ropes=(family.config_rope(config, DEFAULTS),),
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file."""
    return family.gguf_decoder(meta, Factors(), "qwen2")


ARCHITECTURE = Architecture(
    "qwen2", names, from_config, network="Qwen2", gguf="qwen2", gguf_names=family.GGUF_NAMES, from_gguf=from_gguf
)
