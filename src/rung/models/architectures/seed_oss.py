"""Seed-OSS: Llama with heads of their own width and biases on q, k and v."""

from __future__ import annotations

from rung.models.architectures import family
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 155136,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524288,
}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    attention = family.ATTENTION_BIAS_NAMES if config.flag("attention_bias", True) else {}
    output = family.OUTPUT_BIAS_NAMES if config.flag("attention_out_bias", False) else {}
    return family.LAYER_NAMES | attention | output | (family.MLP_BIAS_NAMES if config.flag("mlp_bias", False) else {})


def _without(config: Settings) -> dict[str, int | None]:
    """The defaults of keys that are null: all heads have keys, and a head is hidden / heads wide."""
    keys = ("num_key_value_heads", "head_dim")
    return {key: None for key in keys if config.raw(key, DEFAULTS[key]) is None}


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    defaults = DEFAULTS | _without(config)
    count = family.layer_count(config, defaults)
    return family.decoder(
        config,
        "seed_oss",
        defaults,
        layers=family.layers(Settings({}, config.where), count, None, lambda index: False),
        ropes=(family.config_rope(config, defaults),),
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file."""
    return family.gguf_decoder(meta, Factors(), "seed_oss")


ARCHITECTURE = Architecture(
    "seed_oss",
    names,
    from_config,
    network="SeedOss",
    gguf="seed_oss",
    gguf_names=family.GGUF_NAMES | {"post_attention_norm.weight": "mlp_norm"},
    from_gguf=from_gguf,
    ends=(2,),
    bos=0,
)
