"""Llama 2 and 3. GGUF files of Mistral's older models have this architecture too."""

from __future__ import annotations

from rung.core.errors import BadFile
from rung.models.architectures import family
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    attention = family.ATTENTION_BIAS_NAMES | family.OUTPUT_BIAS_NAMES if config.flag("attention_bias", False) else {}
    return family.LAYER_NAMES | attention | (family.MLP_BIAS_NAMES if config.flag("mlp_bias", False) else {})


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    count = family.layer_count(config, DEFAULTS)
    return family.decoder(
        config,
        "llama",
        DEFAULTS,
        layers=family.layers(Settings({}, config.where), count, None, lambda index: False),
        ropes=(family.config_rope(config, DEFAULTS),),
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file: its q and k are stored so that neighboring dimensions rotate together."""
    width = family.gguf_width(meta)
    if meta.integer("rope.dimension_count", width) != width:
        raise BadFile(f"{meta.where}: llama.rope.dimension_count must be the {width} dimensions of a head")
    if meta.text("rope.scaling.type", "linear") == "longrope":
        factors = Factors(short=factors.short, long=factors.long)
    else:
        factors = Factors(plain=factors.plain)
    rope = family.gguf_rope(meta, factors, width, interleaved=True)
    return family.gguf_decoder(meta, factors, "llama", ropes=(rope,))


ARCHITECTURE = Architecture(
    "llama",
    names,
    from_config,
    network="Llama",
    gguf="llama",
    gguf_names=family.GGUF_NAMES | family.GGUF_BIAS_NAMES,
    gguf_factors=("plain", "short", "long"),
    from_gguf=from_gguf,
    ends=(2,),
    bos=1,
    adds_bos=True,
)
