"""Qwen 3: norms on q and k, heads of their own width."""

from __future__ import annotations

from rung.models.architectures import family, qwen2
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder
from rung.models.settings import Settings

DEFAULTS = qwen2.DEFAULTS | {"head_dim": 128}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    biases = family.ATTENTION_BIAS_NAMES | family.OUTPUT_BIAS_NAMES if config.flag("attention_bias", False) else {}
    return family.LAYER_NAMES | family.QK_NORM_NAMES | biases


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    return family.decoder(
        config,
        "qwen3",
        DEFAULTS | qwen2.heads(config),
        layers=qwen2.layers(config, family.layer_count(config, DEFAULTS)),
        ropes=(family.config_rope(config, DEFAULTS),),
        qk_norm=True,
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file."""
    return family.gguf_decoder(meta, Factors(), "qwen3", qk_norm=True)


ARCHITECTURE = Architecture(
    "qwen3",
    names,
    from_config,
    network="Qwen3",
    gguf="qwen3",
    gguf_names=family.GGUF_NAMES | family.GGUF_QK_NORM_NAMES,
    from_gguf=from_gguf,
)
