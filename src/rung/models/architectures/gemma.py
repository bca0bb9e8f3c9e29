"""Gemma 1: the embedding scaled, one added to norms, GELU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rung.models.architectures import family
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    return family.LAYER_NAMES | biases(config)


def biases(config: Settings) -> dict[str, str]:
    """Names of the biases that ``attention_bias`` asks for."""
    return family.ATTENTION_BIAS_NAMES | family.OUTPUT_BIAS_NAMES if config.flag("attention_bias", False) else {}


def decoder(config: Settings, model_type: str, defaults: Mapping[str, Any], **more: Any) -> Decoder:
    """Return the fields that all Gemmas share: checkpoints store norms less one, and embedded tokens grow by
    sqrt(hidden)."""
    family.refuse_bidirectional(config)
    found = family.decoder(config, model_type, defaults, **more)
    return replace(found, norm_offset=1.0, embedding_scale=math.sqrt(found.hidden))


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    name = config.text("hidden_act", "gelu_pytorch_tanh")
    count = family.layer_count(config, DEFAULTS)
    return decoder(
        config,
        "gemma",
        DEFAULTS,
        layers=family.layers(Settings({}, config.where), count, None, lambda index: False),
        ropes=(family.config_rope(config, DEFAULTS),),
        # the first release said gelu and meant its approximation
        activation="gelu_tanh" if name == "gelu" else family.activation(name, config.where),
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file, whose norms have been raised by one."""
    return gguf_decoder(meta, "gemma")


def gguf_decoder(meta: Settings, model_type: str, **more: Any) -> Decoder:
    """Return the fields that all Gemmas share in GGUF files."""
    scale = math.sqrt(meta.integer("embedding_length"))
    return family.gguf_decoder(meta, Factors(), model_type, activation="gelu_tanh", embedding_scale=scale, **more)


ARCHITECTURE = Architecture(
    "gemma",
    names,
    from_config,
    network="Gemma",
    gguf="gemma",
    gguf_names=family.GGUF_NAMES,
    from_gguf=from_gguf,
    tied=True,
    ends=(1,),
    bos=2,
    adds_bos=True,
)
